// Draws the plots of a saved report with uPlot. Their data are in script elements beside them.
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const COLORS = ["#3b7dd8", "#d8663b", "#3f9f6a", "#a45bc4"];
for (const place of document.querySelectorAll("figure[data-plot]")) {
  const plot = JSON.parse(document.getElementById(place.dataset.plot).textContent);
  const axis = { stroke: css("--quiet"), grid: { stroke: css("--line") }, ticks: { stroke: css("--line") } };
  const bars = plot.kind === "bars";
  const names = plot.names;
  const x = { ...axis, size: 34 };
  if (names) Object.assign(x, { splits: plot.x, values: () => names, grid: { show: false } });
  new uPlot({
    width: Math.min(plot.width || 440, document.body.clientWidth - 40), height: 180, cursor: { y: false }, legend: { show: plot.series.length > 1 },
    scales: { x: { time: false, range: plot.range }, y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.05 : 1] } },
    axes: [x, { ...axis, size: 60 }],
    series: [{ label: plot.unit || "" }, ...plot.series.map((one, n) => ({
      label: one.label, stroke: COLORS[n % 4], width: 1.5, fill: bars ? COLORS[n % 4] + "80" : undefined,
      points: { show: false },
      paths: bars ? (names ? uPlot.paths.bars({ size: [0.7, 60] }) : uPlot.paths.stepped({ align: 1 })) : undefined,
    }))],
  }, [plot.x, ...plot.series.map((one) => one.y)], place);
}
