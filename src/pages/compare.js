// The page of two runs side by side: draws what `braid compare` found.

const {equal, a, b, figures} = JSON.parse(document.getElementById('data').textContent);

const view = new Window();
const words = name => name.replaceAll('_', ' ');
const pointsOf = ({x, y}, factor = 1) => x.map((at, index) => [at, y[index] === null ? null : factor * y[index]]);

function chartsOf({name, curves}) {
  const options = {xName: 'iteration', xText: value => numberText(Math.round(value), 9), view};
  const values = new LineChart({
    ...options,
    title: words(name),
    series: [
      {name: `A, ${a.name}`, colour: colourOf(0), points: pointsOf(curves.a)},
      {name: `B, ${b.name}`, colour: colourOf(1), points: pointsOf(curves.b), dashed: true}
    ]
  });
  const difference = new LineChart({
    ...options,
    title: `${words(name)}: B against A`,
    unit: '%',
    series: [{name: 'difference', colour: colourOf(2), points: pointsOf(curves.relative, 100)}]
  });
  values.node.id = `chart-${name}`;
  return [values, difference];
}

const charts = figures.filter(({compared}) => compared > 0).flatMap(chartsOf);
const places = charts.flatMap(chart => chart.series.flatMap(series => series.points.map(([x]) => x)));
view.full = [places.reduce((low, x) => Math.min(low, x)), places.reduce((high, x) => Math.max(high, x))];
if (view.full[0] === view.full[1]) view.full[1] += 1;

const agreement = figures.map(figure => {
  const first = figure.first_difference;
  return [words(figure.name), numberText(figure.compared, 9), numberText(figure.different, 9),
      first ? numberText(first.iteration, 9) : 'none', numberText(first?.a, 7), numberText(first?.b, 7),
      numberText(figure.max_relative, 3), numberText(figure.at_max_relative, 9), numberText(figure.mean_relative, 3),
      numberText(figure.correlation, 6)];
});

const runs = [['A', a], ['B', b]].map(([letter, run]) => [`${letter}, ${run.name}`, numberText(run.first, 9),
    numberText(run.last, 9), numberText(run.points, 9), withUnit(run.iteration_ms, 'ms'),
    `${run.skipped}, ${run.nan}`, numberText(run.iterations_only_here.length, 9),
    run.only_here.map(words).join(', ') || '–']);

const warnings = [...a.warnings, ...b.warnings];

fillPage(element('p', {class: 'lead'}, equal ? 'No figure differs.' : 'Some figures differ.'),
    warnings.length ? element('div', {class: 'notice warn'}, warnings.map(text => paragraph(text))) : null,
    tableSection('Agreement', 'Relative differences are shares of the larger value.',
        ['figure', 'compared', 'differ', 'first at', 'A', 'B', 'largest', 'at', 'mean', 'correlation'], agreement),
    tableSection('Runs', 'The time per iteration is a median without the first interval of each start.',
        ['run', 'first iteration', 'last', 'points', 'time', 'skipped, nan', 'iterations only here', 'figures only here'],
        runs),
    section('Curves', element('div', {class: 'controls'}, button('show all', () => view.reset())),
        paragraph('Drag over a chart to zoom in; a double click shows all.'),
        element('div', {class: 'charts'}, charts.map(chart => chart.node))),
    section('Files', [a, b].map(run => element('ul', {class: 'files'}, run.sources.map(path => element('li', {}, path))))));
for (const chart of charts) chart.draw();
