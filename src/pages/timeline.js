// The timeline of a step: a canvas to zoom and pan.

// Spans as objects; names are stored once each.
function unpackTimeline({tracks, texts, spans}) {
  return {
    tracks,
    spans: spans.map(([track, name, kind, begin, end]) => ({track, name: texts[name], kind: texts[kind], begin, end}))
  };
}

class Timeline {
  constructor(timeline) {
    this.timeline = timeline;
    this.kinds = [...new Set(timeline.spans.map(span => span.kind))];
    this.view = new Window();
    const label = `Timeline of ${timeline.tracks.length} tracks.`;
    const keys = 'Plus and minus zoom, arrow keys move, Escape shows all.';
    this.canvas = element('canvas', {tabindex: '0', role: 'img', 'aria-label': `${label} ${keys}`});
    this.node = element('figure', {class: 'chart timeline'},
        legend(this.kinds.map((name, index) => ({name, colour: colourOf(index)}))), this.canvas);
    this.view.listeners.push(() => this.draw());
    this.listen();
    this.view.full = [0, Math.max(...timeline.spans.map(span => span.end)) || 1];
    new ResizeObserver(() => this.draw()).observe(this.node);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.draw());
  }

  // Narrow screens have no room for names beside the bars.
  get left() { return this.canvas.clientWidth < 560 ? 4 : Math.min(210, this.canvas.clientWidth * 0.24); }
  get rowHeight() { return this.left > 4 ? 22 : 34; }

  draw() {
    const width = this.canvas.clientWidth;
    if (width < 100) return;  // not laid out yet
    const {tracks, spans} = this.timeline;
    const row = this.rowHeight, height = tracks.length * row + 24, left = this.left;
    const density = window.devicePixelRatio || 1;
    this.canvas.width = width * density;
    this.canvas.height = height * density;
    this.canvas.style.height = `${height}px`;
    const paint = this.canvas.getContext('2d');
    paint.scale(density, density);
    const style = getComputedStyle(this.canvas);
    const colour = name => style.getPropertyValue(name).trim();
    const [from, to] = this.view.range;
    const x = this.x = scaleOf(from, to, left, width - 4);
    this.canvas.dataset.from = from;
    this.canvas.dataset.to = to;
    paint.font = '11px system-ui, sans-serif';
    paint.textBaseline = 'middle';
    this.drawFrame(paint, {width, height, left, row, colour});
    paint.save();
    paint.beginPath();
    paint.rect(left, 0, width - left, height);
    paint.clip();
    const barTop = left > 4 ? 3 : 15;
    spans.forEach(span => {
      const {begin, end} = span;
      if (end < from || begin > to) return;
      const [a, b] = [x(begin), Math.max(x(begin) + 0.5, x(end) - 0.5)];
      paint.fillStyle = colour(`--series-${this.kinds.indexOf(span.kind) % SERIES_COLOURS}`);
      paint.fillRect(a, span.track * row + barTop, b - a, row - barTop - 3);
      const text = span.name;
      if (b - a < 16 || paint.measureText(text).width > b - a - 6) return;
      paint.fillStyle = colour('--card');
      paint.fillText(text, Math.max(a, left) + 4, span.track * row + (row + barTop - 3) / 2 + 0.5);
    });
    paint.restore();
  }

  drawFrame(paint, {width, height, left, row, colour}) {
    const {tracks} = this.timeline;
    const [from, to] = this.view.range;
    for (const tick of niceTicks(from, to, Math.max(2, Math.floor((width - left) / 100)))) {
      paint.fillStyle = colour('--grid');
      paint.fillRect(this.x(tick), 0, 1, height - 20);
      paint.fillStyle = colour('--soft');
      const text = secondsText(tick).replace('\u00a0', ' ');
      const room = width - 4 - paint.measureText(text).width;
      paint.fillText(text, Math.min(this.x(tick) + 3, room), height - 10);
    }
    tracks.forEach((name, index) => {
      paint.fillStyle = colour('--grid');
      paint.fillRect(0, (index + 1) * row - 1, width, 1);
      paint.fillStyle = colour('--soft');
      if (left <= 4) return paint.fillText(name, 4, index * row + 8);
      let text = name;
      while (text.length > 3 && paint.measureText(`${text}…`).width > left - 8) text = text.slice(0, -1);
      paint.fillText(text === name ? name : `${text}…`, 0, index * row + row / 2);
    });
  }

  spanAt(clientX, clientY) {
    const corner = this.canvas.getBoundingClientRect();
    const time = this.x.inverse(clientX - corner.left), track = Math.floor((clientY - corner.top) / this.rowHeight);
    const close = (this.x.inverse(3) - this.x.inverse(0)) / 2;
    return this.timeline.spans.find(
        span => span.track === track && time >= span.begin - close && time <= span.end + close);
  }

  show(clientX, clientY) {
    const span = this.spanAt(clientX, clientY);
    if (!span) return tooltip.hide();
    const {begin, end} = span;
    tooltip.show(clientX, clientY, line(element('b', {}, span.name)),
        line(span.kind),
        line(`${secondsText(end - begin)}, from ${secondsText(begin)} to ${secondsText(end)}`),
        line(this.timeline.tracks[span.track]));
  }

  listen() {
    let held = null;
    this.canvas.addEventListener('pointerdown', event => {
      held = {x: event.clientX, range: this.view.range};
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener('pointermove', event => {
      if (!held) return this.show(event.clientX, event.clientY);
      tooltip.hide();
      this.moveTo(held.range, (held.x - event.clientX) / (this.canvas.clientWidth - this.left));
    });
    for (const name of ['pointerup', 'pointercancel']) this.canvas.addEventListener(name, () => held = null);
    this.canvas.addEventListener('pointerleave', () => tooltip.hide());
    this.canvas.addEventListener('dblclick', () => this.view.reset());
    this.canvas.addEventListener('wheel', event => {
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;  // else the page scrolls
      event.preventDefault();
      const center = this.x.inverse(event.clientX - this.canvas.getBoundingClientRect().left);
      this.view.zoom((event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8, center);
    }, {passive: false});
    onKeys(this.canvas, {
      '+': () => this.zoom(0.5),
      '-': () => this.zoom(2),
      ArrowLeft: () => this.moveTo(this.view.range, -0.2),
      ArrowRight: () => this.moveTo(this.view.range, 0.2),
      Escape: () => this.view.reset()
    });
  }

  zoom(factor) {
    const [from, to] = this.view.range;
    this.view.zoom(factor, (from + to) / 2);
  }

  // Moves by a share of what is visible, as far as the step reaches.
  moveTo([from, to], share) {
    const [low, high] = this.view.full;
    const by = Math.max(low - from, Math.min(high - to, share * (to - from)));
    this.view.set(from + by, to + by);
  }
}
