// What can be done with a whole pipeline, each after a question where it costs something.

import { h, Fragment, useState } from "./react.js";
import { Alert, Button, Dialog, Input } from "./kit.js";
import { pipelinePath, useChange, useServer } from "./client.js";
import { Field, Grid, Refusal, Row, Stack, Words } from "./parts.js";
import { CopyDialog } from "./snapshots.js";

const HOLDABLE = new Set(["blocked", "running", "snapshotting", "starting"]);
const ENDED = new Set(["failed", "lost", "pending", "stopped"]);

// A question before a change; `word`, if there is one, must be typed first.
export const Confirm = ({ act, children, close, danger = true, title, verb, word }) => {
  const [run, busy, error] = useChange();
  const [typed, setTyped] = useState("");
  const ready = !word || typed === word;
  const go = async () => (await run(act)) && close();
  return h(Dialog, { close, title,
    footer: h(Fragment, null, h(Button, { onClick: close }, "Cancel"),
      h(Button, { busy: busy !== null, disabled: !ready, kind: danger ? "danger" : "solid", onClick: go }, verb)) },
  h(Stack, null, children,
    word && h(Field, { label: `Type ${word} to confirm` }, h(Input, {
      autoComplete: "off", onChange: ({ target }) => setTyped(target.value),
      onKeyDown: ({ key }) => key === "Enter" && ready && busy === null && go(), spellCheck: false, value: typed })),
    h(Refusal, { error })));
};

const VERDICTS = { fail: "error", ok: "success", warn: "warning" };

const Preflight = ({ close, name }) => {
  const [run, busy, error] = useChange();
  const [answer, setAnswer] = useState(null);
  const ask = () => run(async (client) => setAnswer(await client.send("POST", pipelinePath(name, "preflight"))));
  return h(Dialog, { close, title: `Test the source and the sinks of ${name}`,
    footer: h(Fragment, null, h(Button, { onClick: close }, "Close"),
      h(Button, { busy: busy !== null, kind: "solid", onClick: ask }, answer ? "Test again" : "Test now")) },
  h(Stack, null,
    !answer && h("p", null, "Asks the source whether it can be captured, and each sink whether it answers and takes us. Nothing is written and nothing stops."),
    h(Refusal, { error }),
    answer && h(Alert, { tone: answer.ok ? "success" : "error" }, answer.ok ? "Everything that was asked would work." : "Something would not work."),
    answer && h(Grid, { columns: [{ name: "What" }, { name: "Verdict" }, { name: "Why" }], empty: "Nothing was asked.", label: "Findings",
      rows: answer.findings.map(({ check, message, verdict }, index) => ({
        cells: [check, h("span", { className: { error: "df-bad", warning: "df-doubtful" }[VERDICTS[verdict]] }, verdict), h(Words, { text: message })],
        key: `${check} ${index}` })) })));
};

const DIALOGS = {
  copy: ({ close, pipeline }) => h(CopyDialog, { close, name: pipeline.name, source: pipeline.spec?.spec?.source }),
  preflight: ({ close, pipeline }) => h(Preflight, { close, name: pipeline.name }),
  remove: ({ close, leave, pipeline: { name } }) =>
    h(Confirm, { act: async (client) => { await client.send("DELETE", pipelinePath(name)); leave(); },
      close, title: `Delete ${name}?`, verb: "Delete it", word: name },
    h("p", null, "It is stopped, and its document, positions, schemas and dead letters are forgotten. What sinks hold stays.")),
  reset: ({ close, pipeline: { name } }) =>
    h(Confirm, { act: (client) => client.send("DELETE", pipelinePath(name, "checkpoints"), {}, { confirm: name }),
      close, title: `Forget the positions of ${name}?`, verb: "Forget them", word: name },
    h("p", null, "It will start as if it were new: with a snapshot, if its document asks for one, and the log from there. Sinks get rows again that they hold; changes that were made between the old position and the new start are not read.")),
  stop: ({ close, pipeline: { name, supervisor } }) =>
    h(Confirm, { act: (client) => client.send("POST", pipelinePath(name, "stop")), close, title: `Stop ${name}?`, verb: "Stop it" },
      h("p", null, "Its driver delivers what it holds, and ends. Positions stay: it goes on there when it is started again, as long as the source keeps its log."),
      supervisor && h("p", null, `A later run of ${supervisor.dag_id} starts it again; pause that DAG to keep it stopped.`)),
};

export const Actions = ({ leave, pipeline, refresh }) => {
  const [run, busy, error] = useChange();
  const [asking, setAsking] = useState(null);
  const { name, ops, status } = pipeline;
  const { asks_servers, starts_drivers } = useServer();
  const may = (right) => pipeline.rights.includes(right);
  const send = async (verb) => {
    await run((client) => client.send("POST", pipelinePath(name, verb)), verb);
    refresh();
  };
  const close = () => {
    setAsking(null);
    refresh();
  };
  const button = (id, word, onClick) => h(Button, { busy: busy === id, disabled: busy !== null, key: id, onClick }, word);
  const wanted = ops.generation > 0 && ops.desired !== "stopped";
  const stands = status === "stopped" || status === "pending" || !wanted;
  return h(Stack, null,
    !may("operate") && h("span", { className: "df-muted" }, "You may look at it, not change it."),
    may("operate") && h(Row, { end: true },
      wanted && ops.desired === "running" && HOLDABLE.has(status) && button("pause", "Pause", () => send("pause")),
      ops.desired === "paused" && !ENDED.has(status) && button("resume", "Resume", () => send("resume")),
      starts_drivers && ENDED.has(status) && button("resume", "Start", () => send("resume")),
      wanted && button("stop", "Stop…", () => setAsking("stop")),
      button("copy", "Copy tables…", () => setAsking("copy")),
      asks_servers && button("preflight", "Test…", () => setAsking("preflight")),
      may("admin") && stands && button("reset", "Reset positions…", () => setAsking("reset")),
      may("admin") && button("remove", "Delete…", () => setAsking("remove"))),
    h(Refusal, { error }),
    asking && h(DIALOGS[asking], { close, leave, pipeline }));
};
