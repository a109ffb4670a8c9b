// Line charts with a shared horizontal axis, and bars of parts, as SVG at the width of their place.

function niceStep(span, count) {
  const rough = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find(factor => factor * power >= rough * 0.999);
}

function niceTicks(low, high, count) {
  if (!(high > low)) return [low];
  const step = niceStep(high - low, count);
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; ++index)
    ticks.push(Number((index * step).toPrecision(12)));
  return ticks;
}

function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); ++power)
    for (const factor of [1, 2, 5])
      if (factor * 10 ** power >= low * 0.999 && factor * 10 ** power <= high * 1.001) ticks.push(factor * 10 ** power);
  return ticks.length > 7 ? ticks.filter(tick => Math.abs(Math.log10(tick) % 1) < 1e-9) : ticks;
}

// A value's place on an axis and back.
function scaleOf(low, high, begin, end, logarithmic = false) {
  const position = logarithmic ? Math.log : value => value;
  const [from, to] = [position(low), position(high)];
  const span = to - from || 1;
  const scale = value => begin + (position(value) - from) / span * (end - begin);
  scale.inverse = place => {
    const value = from + (place - begin) / (end - begin) * span;
    return logarithmic ? Math.exp(value) : value;
  };
  return scale;
}

// The points that a window shows, with one neighbour on either side so that lines reach its edges.
function visible(points, from, to) {
  let begin = points.findIndex(point => point[0] >= from);
  if (begin < 0) begin = points.length;
  let end = begin;
  while (end < points.length && points[end][0] <= to) ++end;
  return points.slice(Math.max(0, begin - 1), end + 1);
}

function nearest(points, x) {
  let low = 0, high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x)
      low = middle;
    else
      high = middle;
  }
  return high >= 0 && Math.abs(points[high][0] - x) < Math.abs(points[low][0] - x) ? points[high] : points[low];
}

// An exponential mean; weight 0 leaves the points as they are.
function smoothed(points, weight) {
  if (!weight) return points;
  let sum = 0, total = 0;
  return points.map(([x, y]) => {
    if (!isNumber(y)) return [x, y];
    sum = weight * sum + (1 - weight) * y;
    total = weight * total + (1 - weight);
    return [x, sum / total];
  });
}

function pathOf(points, x, y) {
  let path = '', pen = 'M';
  for (const [px, py] of points) {
    if (!isNumber(py)) {
      pen = 'M';
      continue;
    }
    path += `${pen}${x(px).toFixed(1)} ${y(py).toFixed(1)}`;
    pen = 'L';
  }
  return path;
}

function fillDrawing(svg, width, height, ...parts) {
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  svg.setAttribute('height', height);
  svg.replaceChildren(...parts);
}

const tickText = (x, y, anchor, text) => drawing('text', {class: 'tick', x, y, 'text-anchor': anchor}, text);

// A window on the horizontal axis that several charts share.
class Window {
  constructor() {
    this.full = [0, 1];
    this.shown = null;  // null: all
    this.listeners = [];
  }
  get range() { return this.shown ?? this.full; }
  set(from, to) {
    const [low, high] = this.full;
    const least = (high - low) / 1e4;
    [from, to] = [Math.max(low, Math.min(from, to)), Math.min(high, Math.max(from, to))];
    if (to - from < least) return;
    this.shown = from <= low && to >= high ? null : [from, to];
    this.changed();
  }
  zoom(factor, center) {
    const [from, to] = this.range;
    this.set(center - (center - from) * factor, center + (to - center) * factor);
  }
  reset() {
    this.shown = null;
    this.changed();
  }
  changed() {
    for (const listener of this.listeners) listener();
  }
}

// series: [{name, colour, points: [[x, y]], dots, dashed}]; marks: [{x, colour, text}]; state: {smoothing, logarithmic}
class LineChart {
  constructor(options) {
    const defaults = {unit: '', marks: [], xText: numberText, yText: value => numberText(value, 4), state: {}, height: 210};
    Object.assign(this, defaults, options);
    const {title, unit, series, view} = this;
    this.cursor = null;
    const keys = 'Arrow keys read values, plus and minus zoom, Escape shows all.';
    this.svg = drawing('svg', {tabindex: '0', role: 'img', 'aria-label': `${title}: ${series.length} curves. ${keys}`});
    this.node = figure({class: 'chart'}, title, unit, this.svg);
    this.listen();
    view.listeners.push(() => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  values(low, high) {
    return this.series.flatMap(({points}) => visible(points, low, high).map(point => point[1]))
        .filter(y => isNumber(y) && (!this.state.logarithmic || y > 0));
  }

  draw() {
    const width = this.svg.clientWidth;
    if (width < 100) return;  // not laid out yet
    const [from, to] = this.view.range;
    const values = this.values(from, to);
    const logarithmic = Boolean(this.state.logarithmic) && values.length > 0;
    let low = values.length ? values.reduce((a, b) => Math.min(a, b)) : 0;
    let high = values.length ? values.reduce((a, b) => Math.max(a, b)) : 1;
    if (this.fromZero && !logarithmic) low = Math.min(0, low);
    const margin = logarithmic ? 0 : (high - low || Math.abs(high) || 1) * 0.06;
    high += margin;
    if (low !== 0 && !logarithmic) low -= margin;
    const height = this.height, bottom = height - 24, left = 54, right = width - 10;
    const x = scaleOf(from, to, left, right);
    const y = scaleOf(low, high, bottom, 8, logarithmic);
    this.place = {x, y, left, right, bottom, from, to};
    const parts = [];
    for (const tick of logarithmic ? logTicks(low, high) : niceTicks(low, high, 4))
      parts.push(drawing('path', {class: 'grid', d: `M${left} ${y(tick).toFixed(1)}H${right}`}),
          tickText(left - 6, y(tick) + 4, 'end', numberText(tick, 3)));
    for (const tick of niceTicks(from, to, Math.max(2, Math.floor((right - left) / 90))))
      if (tick >= from && tick <= to)
        parts.push(tickText(Math.min(Math.max(x(tick), left + 8), right - 14), height - 6, 'middle', this.xText(tick)));
    parts.push(drawing('path', {class: 'axis-line', d: `M${left} ${bottom}H${right}`}));
    for (const {kind, colour, text, x: at} of this.marks.filter(mark => mark.x >= from && mark.x <= to))
      parts.push(drawing('path',
          {class: `mark ${kind}`, stroke: colour, fill: colour, d: this.markPath(kind, x(at), bottom)},
          drawing('title', {}, text)));
    for (const {points, colour, dots, dashed} of this.series) {
      const shown = visible(points, from, to).map(([px, py]) => [px, logarithmic && py <= 0 ? null : py]);
      const smooth = dots ? 0 : this.state.smoothing ?? 0;
      if (smooth) parts.push(drawing('path', {class: 'curve raw', stroke: colour, d: pathOf(shown, x, y)}));
      parts.push(drawing('path', {
        class: dashed ? 'curve dashed' : 'curve', stroke: colour,
        d: pathOf(smooth ? visible(smoothed(points, smooth), from, to) : shown, x, y)
      }));
      for (const [px, py] of dots || shown.length < 3 ? shown.filter(([, y]) => isNumber(y)) : [])
        parts.push(drawing('circle', {cx: x(px).toFixed(1), cy: y(py).toFixed(1), r: 3, fill: colour}));
    }
    this.overlay = drawing('g', {class: 'overlay'});
    const clip = `clip-${LineChart.count = (LineChart.count ?? 0) + 1}`;
    const isCurve = node => /curve|mark/.test(node.getAttribute('class') ?? '') || node.tagName === 'circle';
    fillDrawing(this.svg, width, height, drawing('clipPath', {id: clip},
                                 drawing('rect', {x: left - 4, y: 0, width: right - left + 8, height: bottom + 5})),
        ...parts.filter(node => !isCurve(node)), drawing('g', {'clip-path': `url(#${clip})`}, parts.filter(isCurve)),
        this.overlay);
    this.svg.dataset.from = from;
    this.svg.dataset.to = to;
  }

  // A restart is a line over the whole height, a checkpoint a tick on the axis, a skipped step a cross at the top.
  markPath(kind, x, bottom) {
    if (kind === 'restart') return `M${x} 8V${bottom}`;
    if (kind === 'skipped') return `M${x - 3} 9l6 6m0-6l-6 6`;
    return `M${x} ${bottom}l-3.5 5h7z`;
  }

  read(at, clientX, clientY) {
    const {x, y, left, right, bottom} = this.place;
    const candidates =
        this.series.map(series => ({series, point: nearest(series.points, at)})).filter(({point}) => point);
    if (!candidates.length) return;
    const nearestX =
        candidates.map(({point}) => point[0]).reduce((a, b) => Math.abs(a - at) <= Math.abs(b - at) ? a : b);
    const near = (this.place.to - this.place.from) / 16;  // a curve that ends long before has nothing to say here
    const found = candidates.filter(({point}) => Math.abs(point[0] - nearestX) <= near);
    if (x(nearestX) < left - 1 || x(nearestX) > right + 1) return;
    this.cursor = nearestX;
    this.overlay.replaceChildren(drawing('path', {class: 'cursor', d: `M${x(nearestX)} 8V${bottom}`}),
        ...found.filter(({point}) => isNumber(point[1])).map(
            ({series, point}) => drawing('circle', {cx: x(point[0]), cy: y(point[1]), r: 3.5, fill: series.colour})));
    const corner = this.svg.getBoundingClientRect();
    tooltip.show(clientX ?? corner.left + x(nearestX), clientY ?? corner.top + 20,
        line(element('b', {}, `${this.xName} ${this.xText(nearestX)}`)),
        found.map(({series, point}) => line(swatch(series.colour), `${series.name}: ${this.yText(point[1])}`,
                      point[0] === nearestX ? '' : ` (at ${this.xText(point[0])})`)),
        this.marks.filter(mark => Math.abs(x(mark.x) - x(nearestX)) < 3).map(mark => line(mark.text)));
  }

  listen() {
    let begin = null;
    const at = event => this.place.x.inverse(event.clientX - this.svg.getBoundingClientRect().left);
    this.svg.addEventListener('pointerdown', event => begin = at(event));
    this.svg.addEventListener('pointermove', event => {
      if (!this.place) return;
      this.read(at(event), event.clientX, event.clientY);
      if (begin === null || !event.buttons) return;
      const [a, b] = [this.place.x(begin), this.place.x(at(event))];
      this.overlay.append(drawing('rect',
          {class: 'selection', x: Math.min(a, b), y: 8, width: Math.abs(a - b), height: this.place.bottom - 8}));
    });
    this.svg.addEventListener('pointerup', event => {
      if (begin !== null && Math.abs(this.place.x(begin) - this.place.x(at(event))) > 8)
        this.view.set(begin, at(event));
      begin = null;
    });
    this.svg.addEventListener('pointerleave', () => this.leave());
    this.svg.addEventListener('blur', () => this.leave());
    this.svg.addEventListener('dblclick', () => this.view.reset());
    const center = () => this.cursor ?? (this.place.from + this.place.to) / 2;
    const step = by => {
      const points = this.series[0]?.points ?? [];
      const index = points.indexOf(nearest(points, center())) + by;
      if (points.length) this.read(points[Math.max(0, Math.min(points.length - 1, index))][0]);
    };
    const [zoom, reset] = [factor => this.view.zoom(factor, center()), () => this.view.reset()];
    onKeys(this.svg, {ArrowLeft: () => step(-1), ArrowRight: () => step(1), '+': () => zoom(0.5), '-': () => zoom(2),
      Escape: reset});
  }

  leave() {
    tooltip.hide();
    this.overlay?.replaceChildren();
  }
}

// Rows of bars made of parts, with a legend and one scale: [{name, note, parts: {name: value}}]; `names` orders parts.
const partNames = rows => [...new Set(rows.flatMap(row => Object.keys(row.parts)))];

function partBars({rows, text, limit, limitName, names = partNames(rows)}) {
  const coloured = names.map((name, index) => ({name, colour: colourOf(index)}));
  const partsOf = row => coloured.map(part => ({...part, value: row.parts[part.name] ?? 0}));
  const total = row => partsOf(row).reduce((sum, part) => sum + part.value, 0);
  const most = Math.max(limit ?? 0, ...rows.map(total)) || 1;
  const bar = row => element('div', {
    class: 'bar', role: 'img',
    'aria-label': `${row.name}: ${partsOf(row).map(part => `${part.name} ${text(part.value)}`).join(', ')}`
  },
      partsOf(row).filter(part => part.value > 0).map(part => element('span', {
        class: 'part',
        tabindex: '0',
        style: {width: `${100 * part.value / most}%`, background: part.colour},
        onpointermove: event => showPart(event.clientX, event.clientY, row, part),
        onfocus: event => {
          const {left, bottom} = event.target.getBoundingClientRect();
          showPart(left, bottom, row, part);
        },
        onpointerleave: () => tooltip.hide(),
        onblur: () => tooltip.hide()
      })),
      limit ? element('span', {class: 'limit', style: {left: `${100 * limit / most}%`}, title: limitName}) : null);
  const showPart = (x, y, row, part) => tooltip.show(x, y, line(element('b', {}, row.name)),
      line(swatch(part.colour), `${part.name}: ${text(part.value)} (${percentText(part.value / total(row))})`));
  const bars = element('div', {class: 'bars'},
      rows.map(row => element('div', {class: 'bar-row'},
                   element('div', {class: 'bar-name'}, element('b', {}, row.name),
                       element('span', {}, row.note ?? text(total(row)))),
                   bar(row))));
  return [legend(coloured), bars];
}
