// The page of a plan: layouts to compare, and the chosen one in detail.

const plan = JSON.parse(document.getElementById('data').textContent);
const {layouts} = plan;
const device = plan.memory_is_shared ? 'rank' : 'GPU';
layouts.forEach((layout, index) => {
  layout.number = index + 1;
  if (layout.timeline) layout.timeline = unpackTimeline(layout.timeline);
});
const baseline = layouts[plan.baseline] ?? null;

// --- state and its views ---

let chosen = layouts[plan.best];
let filter = '', onlyFitting = false;
const listeners = [];
const changed = () => listeners.forEach(listener => listener());
function choose(layout) {
  chosen = layout;
  changed();
}

// "tp 2 recompute" asks for "tp 2", not for tp 20, and for "recompute".
function matching() {
  const phrases = filter.toLowerCase().trim().split(/[\s,]+(?=\D)/).filter(Boolean);
  const escaped = phrase => phrase.replace(/[^a-z0-9\s]/g, '\\$&');
  const boundary = phrase => /\d$/.test(phrase) ? '(?!\\d)' : '';
  const patterns = phrases.map(phrase => new RegExp(escaped(phrase) + boundary(phrase)));
  return layouts.filter(layout => (!onlyFitting || layout.fits) &&
          patterns.every(pattern => pattern.test(`${layout.name} ${layout.settings_text} ${layout.bound_by}`.toLowerCase())));
}

// --- the scatter ---

class Scatter {
  constructor() {
    const label =
        `${layouts.length} layouts by memory and time. Arrow keys go from one to the next, Enter chooses it.`;
    this.svg = drawing('svg', {tabindex: '0', role: 'group', 'aria-label': label});
    this.node = figure({class: 'chart wide', id: 'scatter'}, 'Time and memory of each layout', 'lower left is better',
        this.svg);
    this.svg.addEventListener('pointerleave', () => tooltip.hide());
    const [next, previous] = [() => this.go(1), () => this.go(-1)];
    const enter = () => this.under && choose(this.under);
    onKeys(this.svg, {ArrowRight: next, ArrowDown: next, ArrowLeft: previous, ArrowUp: previous, Enter: enter});
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  draw() {
    const width = this.svg.clientWidth, height = 340;
    if (width < 100) return;  // not laid out yet
    const shown = matching();
    const memory = shown.map(layout => layout.needed_bytes / 1e9), seconds = shown.map(layout => layout.iteration_s);
    const limit = plan.memory_bytes / 1e9;
    const most = Math.max(limit, ...memory), slowest = Math.max(...seconds, 1e-9),
          quickest = Math.min(...seconds, slowest);
    const low = Math.max(0, quickest - 0.15 * (slowest - quickest || slowest));
    const left = 58, right = width - 12, bottom = height - 40;
    const x = scaleOf(0, most * 1.05 || 1, left, right), y = scaleOf(low, slowest + 0.08 * (slowest - low), bottom, 10);
    const parts = [];
    for (const tick of niceTicks(low, slowest, 5))
      parts.push(drawing('path', {class: 'grid', d: `M${left} ${y(tick)}H${right}`}),
          tickText(left - 7, y(tick) + 4, 'end', `${numberText(tick, 3)} s`));
    for (const tick of niceTicks(0, most * 1.05, Math.max(2, Math.floor(width / 110))))
      parts.push(drawing('path', {class: 'grid', d: `M${x(tick)} 10V${bottom}`}),
          tickText(x(tick), bottom + 16, 'middle', numberText(tick, 3)));
    parts.push(drawing(
        'text', {class: 'axis-name', x: right, y: height - 6, 'text-anchor': 'end'}, plan.memory_is_shared ? 'memory of all ranks, GB' : 'memory of the fullest GPU, GB'));
    if (limit > 0)
      parts.push(drawing('path', {class: 'limit-line', d: `M${x(limit)} 10V${bottom}`}),
          drawing('text', {class: 'limit-text', x: x(limit) - 5, y: 20, 'text-anchor': 'end'},
              `${numberText(limit, 3)} GB available`));
    const front = shown.filter(layout => layout.on_front).sort((a, b) => a.needed_bytes - b.needed_bytes);
    parts.push(drawing('path',
        {class: 'front-line', d: pathOf(front.map(layout => [layout.needed_bytes / 1e9, layout.iteration_s]), x, y)}));
    const order = [...shown].sort((a, b) => (a === chosen) - (b === chosen) || a.on_front - b.on_front);
    const points = order.map(layout => this.point(layout, x(layout.needed_bytes / 1e9), y(layout.iteration_s)));
    fillDrawing(this.svg, width, height, ...parts, ...points);
  }

  point(layout, x, y) {
    const classes = ['point', !layout.fits && 'too-large', layout.on_front && 'front', layout === chosen && 'chosen'];
    const colour = !layout.fits ? 'var(--bad)' : layout === baseline ? 'var(--series-1)' : 'var(--series-0)';
    return drawing('circle', {
      class: classes.filter(Boolean).join(' '),
      cx: x.toFixed(1),
      cy: y.toFixed(1),
      r: layout === chosen ? 7 : layout.on_front || layout === baseline ? 5.5 : 4.5,
      'data-number': layout.number,
      style: {[layout.fits ? 'fill' : 'stroke']: colour},
      onpointerenter: event => this.tell(layout, event.clientX, event.clientY),
      onclick: () => choose(layout)
    });
  }

  tell(layout, x, y) {
    tooltip.show(x, y, line(element('b', {}, `${layout.number}. ${layout.name}`)),
        line(layout.settings_text), line(`${secondsText(layout.iteration_s)} per iteration, ${numberText(layout.tokens_per_s_per_gpu)} tokens/s/${device}`),
        line(`needs ${gigabytes(layout.needed_bytes)}${layout.fits ? '' : ', does not fit'}; ` +
            `${gigabytes(layout.device_bytes)} with the allocator's slack`),
        layout === baseline ? line('the recipe as it is') : null, line(`bound by ${layout.bound_by}`));
  }

  go(step) {
    const shown = matching().sort((a, b) => a.needed_bytes - b.needed_bytes);
    if (!shown.length) return;
    const index = shown.indexOf(this.under ?? chosen);
    this.under = shown[Math.max(0, Math.min(shown.length - 1, index + step))];
    const point = this.svg.querySelector(`[data-number="${this.under.number}"]`);
    const {left, bottom} = point.getBoundingClientRect();
    this.tell(this.under, left, bottom);
  }
}

// --- the table of layouts ---

const COLUMNS = [
  column('#', 'number', String),
  {...wordColumn('layout', 'name', '18rem'), text: layout => layout.name + (layout === baseline ? ' (the recipe)' : '')},
  wordColumn('settings', 'settings_text', '16rem'),
  column('time', 'iteration_s', secondsText),
  column(`tokens/s/${device}`, 'tokens_per_s_per_gpu', numberText),
  column(`TFLOP/s/${device}`, 'tflops_per_gpu', numberText),
  {...column('memory needed', 'needed_bytes'), text: ({fits, needed_bytes: bytes}) =>
      element('span', {class: fits ? null : 'bad'}, gigabytes(bytes))},
  column('with slack', 'device_bytes', gigabytes),
  column('bubble', 'bubble', percentText),
  column('exposed', 'exposed_communication_s', secondsText),
  wordColumn('bound by', 'bound_by', '9rem'),
];

function layoutsSection() {
  const scatter = new Scatter();
  const {table, update} = sortableTable({
    columns: COLUMNS, rows: layouts, onselect: choose, selected: layout => layout === chosen,
    order: {column: 3, down: false}, caption: 'Layouts'
  });
  const count = element('span', {id: 'count'});
  const refresh = () => {
    const rows = matching();
    count.textContent = `${rows.length} of ${layouts.length}`;
    scatter.draw();
    update(rows);
  };
  listeners.push(refresh);
  const show = (phrases, fitting) => {
    [filter, onlyFitting] = [phrases, fitting];
    refresh();
  };
  const search = element('input', {
    type: 'search', id: 'filter', placeholder: 'tp 2 recompute', oninput: event => show(event.target.value, onlyFitting)
  });
  const showFitting = checked => show(filter, checked);
  return section('Layouts', legend([
    {name: 'fits', colour: 'var(--series-0)'},
    ...(baseline ? [{name: 'the recipe as it is', colour: 'var(--series-1)'}] : []),
    {name: 'needs too much memory', colour: 'var(--bad)'},
    {name: 'with a ring, on the dashed line: no other is faster with less memory', colour: 'var(--ink)'}
  ]),
      scatter.node,
      element('div', {class: 'controls', style: {margin: '.9rem 0 .6rem'}}, element('label', {}, 'filter', search),
          element('label', {}, checkbox(showFitting, {id: 'fitting'}), 'only those that fit'), count),
      element('div', {class: 'scroll rows', tabindex: '0', role: 'region', 'aria-label': 'layouts'}, table));
}

// --- the chosen layout ---

function figures() {
  const place = element('div', {class: 'cards', id: 'figures'});
  listeners.push(() => {
    const faster = baseline && chosen !== baseline ? `${numberText(baseline.iteration_s / chosen.iteration_s, 3)}×` : null;
    place.replaceChildren(...[card(secondsText(chosen.iteration_s),
            chosen.spread_s > 0 ? `per iteration, ± ${secondsText(chosen.spread_s)}` : 'per iteration'),
        faster ? card(faster, 'as fast as the recipe') : null,
        card(numberText(chosen.tokens_per_s_per_gpu), `tokens per second and ${device}`),
        card(numberText(chosen.tflops_per_gpu), `TFLOP/s per ${device}`),
        card(gigabytes(chosen.needed_bytes),
            `memory, of ${gigabytes(plan.memory_bytes)}${plan.memory_is_shared ? ' for all ranks' : ''}`),
        card(percentText(chosen.bubble), 'bubble'),
        card(secondsText(chosen.exposed_communication_s), 'exposed communication'),
        card(chosen.bound_by, 'bounds it'),
    ].filter(Boolean));
  });
  return place;
}

// Stages of modules that share ranks may have the same fullest rank, which holds all of them.
const isFirstOfRank = ({rank}, index, stages) => stages.findIndex(stage => stage.rank === rank) === index;
const stagesOfRank = (layout, rank) => layout.memory.filter(stage => stage.rank === rank)
                                           .map(({module, stage}) => `${module}, stage ${stage}`)
                                           .join(' + ');

function memoryBars(layout) {
  return element('div', {id: 'memory'}, element('h3', {}, 'Memory per stage'), partBars({
        text: gigabytes,
        limit: plan.memory_is_shared ? null : plan.memory_bytes,
        limitName: 'what a rank may use',
        rows: layout.memory.filter(isFirstOfRank).map(stage => ({
          name: `${stagesOfRank(layout, stage.rank)} (rank ${stage.rank})`,
          note: gigabytes(stage.needed_bytes),
          parts: stage.bytes
        }))
      }));
}

function timeBars({times}) {
  return element('div', {id: 'times'}, element('h3', {}, 'Time of an average rank'),
      partBars({rows: times, text: secondsText}),
      plainTable(['', ...times.map(row => row.name)],
          partNames(times).map(name => [name, ...times.map(row => secondsText(row.parts[name]))])));
}

function timelineOf(layout) {
  if (!layout.timeline) return null;
  const timeline = new Timeline(layout.timeline);
  return {
    timeline,
    node: element('div', {id: 'timeline'}, element('h3', {}, 'Timeline of a step'),
        element('div', {class: 'controls'}, button('+', () => timeline.zoom(0.5), {'aria-label': 'zoom in'}),
            button('−', () => timeline.zoom(2), {'aria-label': 'zoom out'}),
            button('all', () => timeline.view.reset(), {'aria-label': 'show all'}),
            element('span', {}, 'Drag to move, Ctrl and wheel to zoom.')),
        timeline.node)
  };
}

function detailsSection() {
  const title = element('span', {id: 'chosen'});
  const place = element('div', {id: 'details'});
  const rebuild = () => {
    title.textContent = `Layout ${chosen.number}: ${chosen.name}`;
    const timeline = timelineOf(chosen);
    const textOf = value => Array.isArray(value) ? value.join(', ') || 'none' : String(value);
    const rows = Object.entries(chosen.settings)
                     .map(([key, value]) => [element('dt', {}, key), element('dd', {}, textOf(value))]);
    place.replaceChildren(...[element('div', {class: 'pair'}, memoryBars(chosen), timeBars(chosen)), timeline?.node,
        rows.length ? element('div', {class: 'card', style: {'margin-top': '.9rem'}}, element('h3', {}, 'Settings'),
                          element('dl', {class: 'settings'}, rows)) :
                      null].filter(Boolean));
    timeline?.timeline.draw();
  };
  listeners.push(rebuild);
  return element('section', {}, element('h2', {}, title), place);
}

const facts = [
  plan.model, `${numberText(plan.ranks, 9)} ranks`, `${plan.hardware} (${plan.hardware_source})`,
  plan.global_batch ? `global batch ${numberText(plan.global_batch, 9)}` : ''
];
fillPage(element('p', {class: 'lead'}, facts.filter(Boolean).join(' · ')),
    plan.notes.length ? element('div', {class: 'notice warn'}, plan.notes.map(text => paragraph(text))) : null,
    figures(), layouts.length > 1 ? layoutsSection() : null, detailsSection());
changed();
