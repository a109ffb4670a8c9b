// The page of runs: draws what `braid report` found in their files.

const {runs, device, different_settings: differences} = JSON.parse(document.getElementById('data').textContent);

const PHASE_ORDER =
    ['forward', 'backward', 'bridge wait', 'pipeline wait', 'data wait', 'reduce', 'optimizer', 'other'];
const runColour = index => colourOf(index);
const shown = runs.map(() => true);
const hasSeveral = runs.length > 1;
const withRun = (run, text) => hasSeveral ? `${run.name}: ${text}` : text;

// --- horizontal axes: iterations, samples, or hours since the start ---

const AXES = {
  iteration: {name: 'iteration', text: value => numberText(Math.round(value), 9)},
  samples: {name: 'samples', text: value => numberText(Math.round(value), 9), curve: 'consumed_samples'},
  hours: {name: 'hours', text: value => numberText(value, 4), curve: 'time'},
};

// The value of a curve at an iteration, on the line between its neighbours.
function interpolated(curve, iteration) {
  const {x, y} = curve;
  let high = x.findIndex(at => at >= iteration);
  if (high < 0) high = x.length - 1;
  const low = Math.max(0, x[high] === iteration ? high : high - 1);
  const share = x[high] === x[low] ? 0 : (iteration - x[low]) / (x[high] - x[low]);
  return y[low] + share * (y[high] - y[low]);
}

const startOf = run => run.attempts[0]?.began ?? run.curves.time?.y[0];

function placeOn(axis, run, iteration) {
  const {curve} = AXES[axis];
  if (!curve) return iteration;
  if (!run.curves[curve]) return null;
  const value = interpolated(run.curves[curve], iteration);
  return axis === 'hours' ? (value - startOf(run)) / 3600 : value;
}

const canUse = axis => runs.every(run => !AXES[axis].curve || run.curves[AXES[axis].curve]);

function pointsOf(run, {x, y}, factor = 1) {
  const points = x.map(
      (iteration, index) => [placeOn(axis, run, iteration), y[index] === null ? null : factor * y[index]]);
  return points.filter(([at]) => isNumber(at)).sort((a, b) => a[0] - b[0]);
}

// --- parts of the page ---

const stateText = run => {
  const words = {finished: run.end.text, failed: `failed: ${run.end.text}`, open: run.end.text.split(':')[0]};
  return element('span', {class: `state ${run.end.state}`}, words[run.end.state]);
};

function overview() {
  const name = (run, index) => {
    const show = checked => {
      shown[index] = checked;
      redraw();
    };
    return element('label', {}, checkbox(show, {checked: true}), ' ', swatch(runColour(index)), run.name);
  };
  const rows = runs.map((run, index) => [name(run, index), stateText(run), run.model || '–', numberText(run.ranks),
                            [run.last_iteration, run.iterations].filter(isNumber).map(at => numberText(at, 9)).join(' / '),
                            numberText(run.lm_loss, 5), withUnit(run.typical.iteration_ms, 'ms'),
                            numberText(run.typical.tokens_per_gpu), numberText(run.typical.tflops_per_gpu),
                            `${run.skipped_count}, ${run.nan_count}`, String(Math.max(0, run.attempts.length - 1))]);
  const headings = ['run', 'ended', 'model', 'ranks', 'iterations', 'lm loss', 'time', `tokens/s/${device}`,
    `TFLOP/s/${device}`, 'skipped, nan', 'restarts'];
  return section('Overview', plainTable(headings, rows, 3));
}

const UNUSABLE = {
  damaged: 'damaged samples',
  too_long: 'samples too long, left out',
  cut: 'samples too long, cut',
  without_targets: 'samples with nothing to predict, left out'
};

function cards(run) {
  const peak = run.peak_memory;
  return element('div', {class: 'cards'}, card(stateText(run), 'ended'),
      card(numberText(run.last_iteration, 9),
          run.iterations ? `iterations of ${numberText(run.iterations, 9)}` : 'iterations'),
      card(numberText(run.lm_loss, 5), 'lm loss'),
      card(withUnit(run.typical.iteration_ms, 'ms'), 'time per iteration, median'),
      card(numberText(run.typical.tokens_per_gpu ?? run.typical.tokens_per_s),
          run.typical.tokens_per_gpu ? `tokens per second and ${run.device}` : 'tokens per second'),
      run.typical.tflops_per_gpu ? card(numberText(run.typical.tflops_per_gpu), `TFLOP/s per ${run.device}`) : null,
      peak ? card(mebibytes(peak.mib), `memory: ${peak.kind}`) : null,
      card(`${run.skipped_count}, ${run.nan_count}`, 'steps skipped, not finite'),
      card(String(Math.max(0, run.attempts.length - 1)), `restarts (${run.repeated_iterations} iterations run again)`),
      card(numberText(run.consumed_samples, 9), 'samples'),
      Object.entries(UNUSABLE).map(([kind, label]) =>
          kind in run.unusable ? card(numberText(run.unusable[kind], 9), label) : null));
}

function failures() {
  return runs.filter(run => run.end.state === 'failed').map(run => {
    const {cause, explanation, first_rank: rank, first_host: host, evidence, fix} = run.end.diagnosis;
    return element('div', {class: 'notice', role: 'alert'}, element('b', {}, `${run.name} failed: ${cause}`),
        paragraph(explanation),
        rank !== null ? paragraph(`First to fail: rank ${rank}${host ? ` on ${host}` : ''}.`) : null,
        paragraph(element('b', {}, 'Fix: '), fix),
        evidence.slice(0, 3).map(({file, line: number, text}) => element('code', {}, `${file}:${number}: ${text}`)));
  });
}

function warnings() {
  const texts = runs.flatMap(run => run.warnings);
  return texts.length ? element('div', {class: 'notice warn'}, texts.map(text => paragraph(text))) : null;
}

// --- curves ---

const view = new Window();
const lossState = {smoothing: 0, logarithmic: false};
let axis = 'iteration';
const curvesPlace = element('div', {class: 'charts'});

function marksOf(run, index) {
  const of = hasSeveral ? ` of ${run.name}` : '';
  const mark = (kind, iteration, text, colour = runColour(index)) =>
      ({kind, x: placeOn(axis, run, iteration), colour, text});
  return [
    ...run.attempts.slice(1).map(({first}) => mark('restart', first, `restart${of} at iteration ${first}`)),
    ...run.checkpoints.map(({iteration: at}) => mark('checkpoint', at, `checkpoint${of} of iteration ${at}`)),
    ...run.skipped.map(at => mark('skipped', at, `iteration ${at}${of} was skipped`, 'var(--bad)')),
  ];
}

const CHARTS = [
  {curve: 'lm_loss', title: 'Loss', wide: true, marks: true, state: lossState, second: 'validation_loss', height: 280},
  {curve: 'learning_rate', title: 'Learning rate', fromZero: true},
  {curve: 'grad_norm', title: 'Gradient norm', fromZero: true, state: {get smoothing() { return lossState.smoothing; }}},
  {curve: 'iteration_ms', title: 'Time per iteration', unit: 'ms', fromZero: true},
  {curve: 'tokens_per_gpu', title: `Tokens per second and ${device}`, fromZero: true},
  {curve: 'tflops_per_gpu', title: `TFLOP/s per ${device}`, fromZero: true},
  {curve: 'load_balancing_loss', title: 'Load-balancing loss'},
  {curve: 'loss_scale', title: 'Loss scale', unlessConstant: true},
  {curve: 'right_answers', title: 'Right answers in evaluations', unit: '%', factor: 100, fromZero: true},
];

const isConstant = curves => new Set(curves.flatMap(curve => curve.y)).size < 2;

const ofShown = make => runs.flatMap((run, index) => shown[index] ? make(run, index) : []);

function seriesOf(name, dots, factor) {
  const series = (run, index) => ({
    name: (hasSeveral ? run.name : name.replaceAll('_', ' ')) + (dots && hasSeveral ? ', validation' : ''),
    colour: runColour(dots && !hasSeveral ? 1 : index), dots, points: pointsOf(run, run.curves[name], factor)
  });
  return ofShown((run, index) => run.curves[name] ? [series(run, index)] : []);
}

function memorySeries() {
  return ofShown((run, index) => Object.entries(run.memory_mb).map(([kind, curve], number) => ({
    name: withRun(run, kind), colour: runColour(hasSeveral ? index : number), dashed: kind.includes('most'),
    points: pointsOf(run, curve, 1 / 1024)
  })));
}

function redraw() {
  view.listeners = [];
  const charts = [];
  const add = options => {
    const chart = new LineChart({...options, xName: AXES[axis].name, xText: AXES[axis].text, view});
    if (options.wide) chart.node.classList.add('wide');
    if (options.id) chart.node.id = options.id;
    charts.push(chart);
  };
  for (const chart of CHARTS) {
    const curves = runs.flatMap(run => run.curves[chart.curve] ?? []);
    if (!curves.length || (chart.unlessConstant && isConstant(curves))) continue;
    const series =
        [...seriesOf(chart.curve, false, chart.factor), ...(chart.second ? seriesOf(chart.second, true) : [])];
    add({...chart, id: `chart-${chart.curve}`, series, marks: chart.marks ? ofShown(marksOf) : []});
  }
  const memory = memorySeries();
  if (memory.length)
    add({title: 'Memory of the fullest rank', unit: 'GiB', id: 'chart-memory', series: memory, fromZero: true});
  const places = charts.flatMap(chart => chart.series.flatMap(series => series.points.map(([x]) => x)));
  if (places.length) view.full = [places.reduce((a, b) => Math.min(a, b)), places.reduce((a, b) => Math.max(a, b))];
  if (view.full[0] === view.full[1]) view.full[1] += 1;
  view.shown = null;
  curvesPlace.replaceChildren(...charts.map(chart => chart.node));
  for (const chart of charts) chart.draw();
}

function curves() {
  const chooseAxis = event => {
    axis = event.target.value;
    redraw();
  };
  const options = Object.keys(AXES).filter(canUse).map(name => element('option', {value: name}, name));
  const setState = (name, value) => {
    lossState[name] = value;
    view.changed();
  };
  const smoothing = element('input', {
    type: 'range', id: 'smoothing', min: '0', max: '0.98', step: '0.02', value: '0',
    oninput: event => setState('smoothing', Number(event.target.value))
  });
  const logarithmic = checkbox(checked => setState('logarithmic', checked), {id: 'logarithmic'});
  const axes = element('select', {id: 'axis', onchange: chooseAxis}, options);
  return section('Curves',
      element('div', {class: 'controls'}, element('label', {}, 'over', axes),
          element('label', {}, 'smoothing', smoothing), element('label', {}, logarithmic, 'logarithmic loss'),
          button('show all', () => view.reset())),
      paragraph('Drag over a chart to zoom in; a double click shows all. On the loss: a dashed line is a restart, a ' +
              'triangle a checkpoint, a cross a skipped step.'),
      curvesPlace);
}

// --- time, memory, events ---

function times() {
  const rows = runs.flatMap(
      run => run.modules.map(({name, phase_ms: parts}) => ({name: withRun(run, name), parts})));
  const names = partNames(rows).sort((a, b) => PHASE_ORDER.indexOf(a) - PHASE_ORDER.indexOf(b));
  if (!names.length) return null;
  const milliseconds = value => withUnit(value, 'ms', 4);
  return section('Time per phase and module',
      paragraph('Per iteration, means over the ranks of a module and over the run.'),
      partBars({rows, names, text: milliseconds}),
      element('details', {id: 'phase-table'}, element('summary', {}, 'as a table'),
          plainTable(['module', ...names],
              rows.map(row => [row.name, ...names.map(name => milliseconds(row.parts[name] ?? 0))]))));
}

function communication() {
  const rows =
      runs.flatMap(run => run.modules.flatMap(module => Object.entries(module.in_flight_ms).map(([kind, time]) => {
            const exposed = module.exposed_ms[kind] ?? 0;
            return {run: run.name, module: module.name, kind, time, exposed, hidden: time > 0 ? Math.max(0, 1 - exposed / time) : 0};
          })))
          .filter(row => row.time > 0);
  if (!rows.length) return null;
  const columns = [
    ...(hasSeveral ? [wordColumn('run', 'run')] : []),
    wordColumn('module', 'module'),
    wordColumn('kind', 'kind'),
    column('in flight', 'time', value => withUnit(value, 'ms')),
    column('exposed', 'exposed', value => withUnit(value, 'ms')),
    column('hidden', 'hidden', percentText),
  ];
  const {table} = sortableTable(
      {columns, rows, order: {column: columns.length - 2, down: true}, caption: 'Communication per iteration'});
  return section('Communication', paragraph('Per iteration and rank. Exposed time is part of the phases above.'),
      scrolling(table));
}

function predictions() {
  const rows = runs.flatMap(
      run => run.prediction.map(row => [withRun(run, row.what), withUnit(row.predicted, row.unit),
                                    withUnit(row.measured, row.unit), changeText(row.predicted, row.measured)]));
  return tableSection('Prediction and measurement', null, ['', 'predicted', 'measured', 'difference'], rows);
}

function memoryTable() {
  const rows = runs.flatMap(
      run => Object.entries(run.memory_peak_mb).map(([kind, peak]) => [withRun(run, kind), mebibytes(peak)]));
  return tableSection('Memory', 'The most of any rank, over the run.', ['kind', 'peak'], rows);
}

const dateText = seconds =>
    isNumber(seconds) ? new Date(1e3 * seconds).toISOString().replace('T', ' ').slice(0, 19) : '–';

function attempts() {
  const rows = runs.flatMap(run => run.attempts.map(({first, last, began, ended}, index) => [
    withRun(run, String(index + 1)), numberText(first, 9), numberText(last, 9), dateText(began), dateText(ended),
    secondsText(ended - began)
  ]));
  const failed = runs.flatMap(run => run.failures.map(text => element('li', {}, withRun(run, text))));
  const failures = failed.length ?
      [paragraph('Failures in the log:'), element('ul', {class: 'files', id: 'failures'}, failed)] :
      null;
  return tableSection('Starts', 'Each start of the run, and how far it came. Times are UTC.',
      ['start', 'first iteration', 'last iteration', 'began', 'last iteration ended', 'lasted'], rows, {more: failures});
}

function checkpoints() {
  const rows = runs.flatMap(
      run => run.checkpoints.map(
          saved => [withRun(run, numberText(saved.iteration, 9)), withUnit(saved.bytes / 2 ** 20, 'MiB', 4),
              isNumber(saved.seconds) ? secondsText(saved.seconds) : '–', saved.exists ? 'yes' : 'not found']));
  return tableSection('Checkpoints', null, ['iteration', 'size', 'saved in', 'on disk'], rows);
}

function settings() {
  const rows = hasSeveral ? differences.map(({key, values}) => [key, ...values.map(value => value ?? '–')]) : [];
  return tableSection('Differences between the recipes', null, ['key', ...runs.map(run => run.name)], rows,
      {words: runs.length + 1});
}

function sources() {
  return section('Files',
      runs.map(run => element('details', {},
                   element('summary', {}, `${run.name}: ${run.sources.length} files in ${run.folder}`),
                   element('ul', {class: 'files'}, run.sources.map(path => element('li', {}, path))))));
}

const lead = runs.length === 1 ?
    [runs[0].model, runs[0].ranks ? `${runs[0].ranks} ranks` : '', runs[0].layout].filter(Boolean).join(' · ') :
    runs.map(run => run.name).join(', ');
fillPage(element('p', {class: 'lead'}, lead), failures(), warnings(), hasSeveral ? overview() : cards(runs[0]),
    curves(), times(), communication(), memoryTable(), predictions(), attempts(), checkpoints(), settings(), sources());
redraw();
