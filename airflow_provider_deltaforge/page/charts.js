// Curves over time, as SVG. The value under the pointer, or at the arrow keys' mark, is written out.

import { h, useId, useRef, useState } from "./react.js";

const [WIDTH, HEIGHT, BOTTOM, SIDE] = [600, 120, 16, 6];
const MARKS = [1, 2, 2.5, 5, 10];

// The next round number above the highest value, so that the axis does not jump with every point.
const ceiling = (most) => {
  if (!(most > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return MARKS.find((mark) => mark * power >= most) * power;
};

// Runs of points without a gap; a value of null is one.
const runs = (values) => {
  const joined = [[]];
  values.forEach((value, index) => {
    if (value === null) joined.push([]);
    else joined.at(-1).push(index);
  });
  return joined.filter((run) => run.length > 0);
};

const time = (ms, spanMs) =>
  new Date(ms).toLocaleString(undefined, spanMs > 86400000
    ? { day: "2-digit", hour: "2-digit", minute: "2-digit", month: "short" } : { hour: "2-digit", minute: "2-digit" });

// `series`: `[{ name, values }]`, one value or null for each of `times` (ms since the epoch).
export const Chart = ({ format, series, times, title }) => {
  const [at, setAt] = useState(null);
  const box = useRef(null);
  const id = useId();
  const known = series.flatMap(({ values }) => values).filter((value) => value !== null);
  const top = ceiling(Math.max(...known, 0));
  const last = times.length - 1;
  const x = (index) => SIDE + (last ? index / last : 0.5) * (WIDTH - 2 * SIDE);
  const y = (value) => (HEIGHT - BOTTOM) * (1 - value / top) + 2;
  const spanMs = times[last] - times[0];
  const marked = at === null ? null : Math.min(at, last);
  const follow = (event) => {
    const { left, width } = box.current.getBoundingClientRect();
    setAt(Math.max(0, Math.min(last, Math.round(((event.clientX - left) / width) * last))));
  };
  const step = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") setAt(null);
    if (!by) return;
    event.preventDefault();
    setAt(Math.max(0, Math.min(last, (marked ?? last - by) + by)));
  };
  const newest = (values) => values.findLast((value) => value !== null) ?? null;
  const shown = ({ values }) => (marked === null ? newest(values) : values[marked]);
  return h("figure", { className: "df-chart" },
    h("figcaption", { id }, h("span", { className: "df-strong" }, title),
      series.map((curve, index) => h("span", { className: "df-legend", key: curve.name },
        h("i", { "aria-hidden": true, className: `df-line${index}` }), series.length > 1 && `${curve.name} `,
        shown(curve) === null ? "–" : format(shown(curve)))),
      h("span", { className: "df-muted" }, marked === null ? "latest" : time(times[marked], spanMs))),
    h("svg", { "aria-labelledby": id, className: "df-plot", onKeyDown: step, onPointerLeave: () => setAt(null), onPointerMove: follow,
      preserveAspectRatio: "none", ref: box, role: "img", tabIndex: 0, viewBox: `0 0 ${WIDTH} ${HEIGHT}` },
    [0, 0.5, 1].map((part) => h("line", { className: "df-rule", key: part, x1: 0, x2: WIDTH, y1: y(part * top), y2: y(part * top) })),
    series.flatMap(({ name, values }, index) => runs(values).map((run) => h("polyline", {
      className: `df-curve df-line${index}${run.length > 1 ? "" : " df-point"}`, key: `${name} ${run[0]}`,
      // A lone point is a line of no length with round ends.
      points: (run.length > 1 ? run : [run[0], run[0]]).map((point) => `${x(point)},${y(values[point])}`).join(" "),
    }))),
    marked !== null && h("line", { className: "df-mark", x1: x(marked), x2: x(marked), y1: 0, y2: HEIGHT - BOTTOM + 2 })),
    h("div", { className: "df-axis" }, h("span", null, time(times[0], spanMs)), h("span", null, `up to ${format(top)}`),
      h("span", null, time(times[last], spanMs))));
};
