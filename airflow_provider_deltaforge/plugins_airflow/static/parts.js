// Small pieces of the page, from Airflow's own Chakra components: they follow its theme.

const { createElement: h, Fragment } = globalThis.React;
const { Alert, Badge, Box, Code, Heading, HStack, Progress, Table, Text, VStack } =
  globalThis.ChakraUI;

// The word is always beside the colour.
const PALETTES = {
  blocked: "warning",
  failed: "failed",
  lost: "failed",
  paused: "gray",
  pending: "gray",
  running: "success",
  snapshotting: "info",
  starting: "info",
  stopped: "gray",
};

export const NEEDS_ATTENTION = new Set(["failed", "lost", "blocked"]);

export const palette = (status) => PALETTES[status] ?? "gray";

export const Status = ({ status, size = "md" }) =>
  h(
    Badge,
    { colorPalette: palette(status), size, variant: NEEDS_ATTENTION.has(status) ? "solid" : "subtle" },
    h(Box, { "aria-hidden": true, as: "span", bg: "currentColor", borderRadius: "full", boxSize: 2 }),
    status,
  );

export const Section = ({ aside, children, title }) =>
  h(
    Box,
    { as: "section", borderRadius: "md", borderWidth: 1, p: 4, w: "full" },
    h(
      HStack,
      { justify: "space-between", mb: children ? 3 : 0, wrap: "wrap" },
      h(Heading, { as: "h3", size: "sm" }, title),
      aside,
    ),
    children,
  );

export const Figure = ({ children, label, note, value }) =>
  h(
    Box,
    { borderRadius: "md", borderWidth: 1, minW: "8.5rem", px: 3, py: 2 },
    h(Text, { color: "fg.muted", fontSize: "xs" }, label),
    h(Text, { fontSize: "lg", fontVariantNumeric: "tabular-nums", fontWeight: "semibold" }, value),
    note && h(Text, { color: "fg.muted", fontSize: "xs" }, note),
    children,
  );

export const Sparkline = ({ label, values }) => {
  if (values.length < 3) return null;
  const most = Math.max(...values, 1);
  const step = 100 / (values.length - 1);
  const points = values.map((value, index) => `${index * step},${23 - (value / most) * 22}`);
  return h(
    "svg",
    { "aria-label": label, height: 24, preserveAspectRatio: "none", role: "img",
      style: { display: "block", width: "100%" }, viewBox: "0 0 100 24" },
    h("polyline", {
      fill: "none", points: points.join(" "), stroke: "var(--chakra-colors-success-solid)",
      strokeWidth: 1.5, vectorEffect: "non-scaling-stroke",
    }),
  );
};

export const Bar = ({ label, part, status, striped = false }) =>
  h(
    Progress.Root,
    { "aria-label": label, animated: striped, colorPalette: status, size: "sm", striped,
      value: Math.max(0, Math.min(100, part * 100)), w: "full" },
    h(Progress.Track, null, h(Progress.Range, null)),
  );

export const Notice = ({ children, status = "info", title }) =>
  h(
    Alert.Root,
    { alignItems: "flex-start", status },
    h(Alert.Indicator, null),
    h(
      Alert.Content,
      null,
      title && h(Alert.Title, null, title),
      h(Box, { fontSize: "sm", overflowWrap: "anywhere", w: "full" }, children),
    ),
  );

// `text` with the words between backticks as code, as errors and advice are written.
export const Words = ({ text }) =>
  h(
    Fragment,
    null,
    ...text.split("`").map((part, index) =>
      index % 2 ? h(Code, { key: index, size: "sm" }, part) : part),
  );

export const Command = ({ children }) =>
  h(
    Box,
    { as: "pre", bg: "bg.muted", borderRadius: "md", fontFamily: "mono", fontSize: "sm",
      overflowX: "auto", px: 3, py: 2, tabIndex: 0, w: "full" },
    children,
  );

export const Grid = ({ columns, empty, label, rows }) => {
  if (rows.length === 0) return h(Text, { color: "fg.muted", fontSize: "sm" }, empty);
  return h(
    Box,
    { overflowX: "auto" },
    h(
      Table.Root,
      { "aria-label": label, size: "sm", variant: "line" },
      h(
        Table.Header,
        null,
        h(
          Table.Row,
          { bg: "transparent" },
          columns.map(({ name, right }) =>
            h(Table.ColumnHeader, { color: "fg.muted", fontWeight: "medium", key: name, textAlign: right ? "end" : "start",
              whiteSpace: "nowrap" }, name)),
        ),
      ),
      h(
        Table.Body,
        null,
        rows.map(({ cells, key, ...row }) =>
          h(
            Table.Row,
            { bg: "transparent", key, ...row },
            cells.map((cell, index) =>
              h(Table.Cell, {
                fontVariantNumeric: "tabular-nums", key: columns[index].name,
                textAlign: columns[index].right ? "end" : "start",
                whiteSpace: columns[index].right ? "nowrap" : "normal",
              }, cell)),
          )),
      ),
    ),
  );
};

export const Pairs = ({ pairs }) =>
  h(
    Box,
    { as: "dl", columnGap: 4, display: "grid", fontSize: "sm", gridTemplateColumns: "max-content 1fr",
      rowGap: 1 },
    pairs.flatMap(([name, value]) => [
      h(Box, { as: "dt", color: "fg.muted", key: `${name}?` }, name),
      h(Box, { as: "dd", key: name, overflowWrap: "anywhere" }, value),
    ]),
  );

export const Stack = ({ children, ...more }) =>
  h(VStack, { align: "stretch", gap: 4, ...more }, children);
