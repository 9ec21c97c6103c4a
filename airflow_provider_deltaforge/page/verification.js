// Whether sinks hold what the source's tables do.

import { h, Fragment, useState } from "./react.js";
import { Alert, Button, Code } from "./kit.js";
import { pipelinePath, useAnswer, useChange, useClient, useServer } from "./client.js";
import { ago, number, plural } from "./format.js";
import { Answered, Bar, Grid, Muted, Refusal, Row, Section, Stack } from "./parts.js";

const KINDS = ["missing", "extra", "different", "inconclusive"];
const TONES = { different: "error", equal: "success", incomplete: "warning" };
const EXPLAINED = {
  different: "Some rows differ.",
  equal: "Every row is equal.",
  incomplete: "Nothing differs, but not everything could be compared.",
};

const Running = ({ found }) => {
  const again = found.rounds ? `, look ${found.rounds}` : "";
  const words = `${found.phase}${again}: ${number(found.done)} of ${plural(found.total, "chunk")}, ${number(found.rows)} rows`;
  return h("div", { className: "df-bars" }, h(Muted, null, words),
    h(Bar, { label: words, moving: true, part: found.total ? found.done / found.total : 0, tone: "info" }));
};

const Keys = ({ examples }) => h(Fragment, null, KINDS.filter((kind) => examples[kind]?.length).map((kind) =>
  h("div", { key: kind }, h(Muted, null, `${kind}: `), h(Code, null, examples[kind].join("  ")))));

const Result = ({ found }) => {
  const rows = found.sinks.flatMap(({ reason, sink, tables }) => (reason
    ? [{ cells: [sink, "", "", ...KINDS.map(() => ""), reason], key: sink }]
    : tables.map((table) => ({
      cells: [sink, table.table, table.reason ? "" : number(table.rows),
        ...KINDS.map((kind) => (table.reason ? "" : number(table[kind]))),
        table.reason ?? h(Keys, { examples: table.examples })],
      key: `${sink} ${table.table}`,
    }))));
  return h(Stack, null,
    found.verdict
      ? h(Alert, { title: EXPLAINED[found.verdict], tone: TONES[found.verdict] }, `${number(found.rows)} rows of the source were read.`)
      : h(Alert, { title: found.state, tone: "error" }, found.reason),
    found.verdict && h(Grid, {
      columns: [{ name: "Sink" }, { name: "Table" }, { name: "Rows", right: true },
        ...KINDS.map((name) => ({ name: name[0].toUpperCase() + name.slice(1), right: true })), { name: "Keys, or why not", wide: true }],
      empty: "There was nothing to compare.", label: "Comparison", rows }),
    found.sinks.flatMap(({ notes, sink }) => notes.map((note) => h(Muted, { key: `${sink} ${note}` }, `${sink}: ${note}`))));
};

const History = ({ results }) => {
  const client = useClient();
  return h(Grid, {
    columns: [{ name: "Ended" }, { name: "Result" }, { name: "Differences", right: true }, { name: "Rows", right: true }, { name: "By" }],
    empty: "Nobody has verified yet.", label: "Verifications",
    rows: results.map((found) => ({
      cells: [ago(found.finished_at_ms, client.now()), found.verdict ?? found.state, number(found.differences), number(found.rows), found.by],
      key: found.id })) });
};

export const Verification = ({ pipeline: { name, rights } }) => {
  const answer = useAnswer(pipelinePath(name, "verify"));
  const { asks_servers } = useServer();
  const [run, busy, error] = useChange();
  const [repaired, setRepaired] = useState(null);
  const start = async () => {
    await run((client) => client.send("POST", pipelinePath(name, "verify"), {}), "verify");
    answer.refresh();
  };
  const repair = async (id) => {
    if (await run((client) => client.send("POST", pipelinePath(name, "verify", id, "repair")), "repair")) setRepaired(id);
  };
  return h(Answered, { answer }, ({ results, running }) => {
    const last = results.find(({ state }) => state === "finished") ?? results[0];
    const mayOperate = rights.includes("operate");
    const differs = last?.verdict === "different";
    const buttons = h(Fragment, null,
      mayOperate && differs && h(Button, { busy: busy === "repair", disabled: running !== null || repaired === last.id, inList: true, onClick: () => repair(last.id) }, "Repair"),
      mayOperate && asks_servers && h(Button, { busy: busy === "verify" || running !== null, inList: true, onClick: start }, "Verify now"));
    return h(Stack, null,
      h(Section, { aside: buttons, title: "Verification" },
        h(Refusal, { error }),
        differs && repaired === last.id && h(Alert, { title: "The running stream sends these rows again.", tone: "info" },
          "Its progress is shown under Copies. When it is done, verify once more."),
        running && h(Running, { found: running }),
        last ? h(Result, { found: last }) : h(Row, null, h(Muted, null, "Compares the source's tables with what the sinks hold, beside the running stream."))),
      results.length > 0 && h(Section, { title: "Last verifications" }, h(History, { results })));
  });
};
