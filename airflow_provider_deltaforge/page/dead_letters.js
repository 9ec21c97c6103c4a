// Events that nobody could take: look at them, send them again, forget them.

import { h, Fragment, useState } from "./react.js";
import { Alert, Button, Input, Select } from "./kit.js";
import { pipelinePath, useAnswer, useChange, useClient } from "./client.js";
import { ago, number, plural } from "./format.js";
import { Confirm } from "./actions.js";
import { Answered, Command, Field, Grid, Muted, Refusal, Row, Section, Stack } from "./parts.js";

const PAGE = 50;
const REPLAY_EVERY_MS = 1000;

const tableOf = ({ event }) => {
  const source = event.source ?? {};
  return [source.schema ?? source.db, source.table].filter(Boolean).join(".");
};

const placeOf = ({ meta }) => (meta.processor_id ? `processor ${meta.processor_id}` : meta.sink_id ? `sink ${meta.sink_id}` : "–");

const Peek = ({ close, entry, mayOperate, replay }) =>
  h(Section, { aside: h(Fragment, null,
    mayOperate && h(Button, { inList: true, onClick: replay }, "Replay this one…"), h(Button, { inList: true, onClick: close }, "Close")),
  title: `Number ${entry.seq}` },
  h("p", null, entry.meta.error_message),
  entry.payload_truncated && h(Alert, { tone: "warning" }, "Its payload was too large to be kept whole; it cannot be sent again."),
  h(Command, { label: "The event" }, JSON.stringify({ event: entry.event, source_cursor: entry.source_cursor, meta: entry.meta }, null, 2)));

const OVERTAKEN = [["skip", "leave it in the queue"], ["send", "send it all the same"], ["drop", "forget it"]];

const ReplayDialog = ({ close, began, name, wish, words }) => {
  const [overtaken, setOvertaken] = useState("skip");
  const act = async (client) => began((await client.send("POST", pipelinePath(name, "journal", "dlq", "replay"), { ...wish, overtaken })).ticket);
  return h(Confirm, { act, close, danger: false, title: `Send ${words} again?`, verb: "Replay" },
    h("p", null, "The driver sends them to the sinks that lack them, row by row in their order. What is taken leaves the queue; what is refused again stays."),
    h(Field, { label: "An entry whose row has newer events in the sink:" },
      h(Select, { change: setOvertaken, label: "What becomes of overtaken entries", options: OVERTAKEN, value: overtaken })));
};

const COUNTS = [["sent", "sent"], ["refused", "refused again"], ["dropped", "forgotten, as overtaken"], ["overtaken", "left, as overtaken"],
  ["behind", "left behind an earlier one of their row"], ["away", "left, as their sink is away"], ["unfit", "cannot be sent again"]];

const Replay = ({ name, ticket }) => {
  const [settled, setSettled] = useState(false);
  const { data } = useAnswer(pipelinePath(name, "journal", "dlq", "replays", ticket), {}, settled ? 3600000 : REPLAY_EVERY_MS);
  if (!data) return null;
  const over = ["done", "failed", "cancelled"].includes(data.state);
  if (over && !settled) setSettled(true);
  const counts = COUNTS.filter(([key]) => data[key]).map(([key, words]) => `${number(data[key])} ${words}`);
  const word = { pending: "waits for a driver", running: "is under way" }[data.state] ?? data.state;
  return h(Alert, { title: `Replay ${ticket} ${word}`, tone: data.state === "done" ? "success" : data.state === "failed" ? "error" : "info" },
    h("p", null, counts.join(", ") || (over ? "nothing fitted" : "")), data.reason && h("p", null, data.reason));
};

const QueueOff = () =>
  h(Alert, { title: "The queue is off", tone: "info" },
    "An event that cannot be delivered stops the pipeline. ", h("code", null, "spec.journal.enabled: true"), " sets such events aside instead.");

export const DeadLetters = ({ pipeline: { name, ops, rights } }) => {
  const client = useClient();
  const [filter, setFilter] = useState({ error_kind: "", sink_id: "" });
  const [start, setStart] = useState(0);
  const [open, setOpen] = useState(null);
  const [asking, setAsking] = useState(null);
  const [tickets, setTickets] = useState([]);
  const path = pipelinePath(name, "journal", "dlq");
  const answer = useAnswer(path, { ...filter, after: start || null, limit: PAGE }, 3000);
  const [run, busy, error] = useChange();
  const may = (right) => rights.includes(right);
  const isFiltered = Boolean(filter.sink_id || filter.error_kind);
  const chosen = isFiltered ? Object.fromEntries(Object.entries(filter).filter(([, value]) => value)) : { all: true };
  const close = () => {
    setAsking(null);
    answer.refresh();
  };
  const set = (key) => ({ target }) => {
    setStart(0);
    setFilter({ ...filter, [key]: target.value.trim() });
  };
  const queue = ops.dlq?.max_entries !== undefined && ops.dlq?.max_entries !== null;
  const dialogs = {
    ack: () => h(Confirm, { act: (api) => api.send("POST", `${path}/ack`, { up_to_seq: open.seq }), close: () => { setOpen(null); close(); },
      title: `Forget everything up to number ${open.seq}?`, verb: "Forget them" }, h("p", null, "They are deleted from the queue, and were not delivered; those that a filter hides, too.")),
    one: () => h(ReplayDialog, { began: (ticket) => setTickets([ticket, ...tickets]), close, name, wish: { first: open.seq, last: open.seq }, words: `number ${open.seq}` }),
    purge: () => h(Confirm, { act: (api) => api.send("DELETE", path), close, title: `Forget all dead letters of ${name}?`, verb: "Forget all", word: name },
      h("p", null, "They are deleted from the queue, and were not delivered.")),
    replay: () => h(ReplayDialog, { began: (ticket) => setTickets([ticket, ...tickets]), close, name, wish: chosen, words: isFiltered ? "what fits the filter" : "all dead letters" }),
  };
  const shownOpen = open && answer.data?.some(({ seq }) => seq === open.seq) ? open : null;
  return h(Stack, null,
    !queue && h(QueueOff, null),
    tickets.map((ticket) => h(Replay, { key: ticket, name, ticket })),
    h(Row, { apart: true },
      h(Row, null,
        h(Field, { label: "Sink" }, h(Input, { onChange: set("sink_id"), placeholder: "any", value: filter.sink_id })),
        h(Field, { label: "Kind of error" }, h(Input, { onChange: set("error_kind"), placeholder: "any", value: filter.error_kind }))),
      h(Row, null,
        may("operate") && h(Button, { disabled: !answer.data?.length, kind: "solid", onClick: () => setAsking("replay") }, isFiltered ? "Replay what fits…" : "Replay all…"),
        may("operate") && shownOpen && h(Button, { onClick: () => setAsking("ack") }, `Forget up to ${shownOpen.seq}…`),
        may("admin") && h(Button, { disabled: !ops.dlq_entries, onClick: () => setAsking("purge") }, "Forget all…"))),
    h(Refusal, { error }),
    h(Muted, null, `${plural(ops.dlq_entries, "event")} set aside`, queue && `, of ${number(ops.dlq.max_entries)} that the queue may hold`),
    h(Answered, { answer }, (entries) => h(Fragment, null,
      h(Grid, {
        columns: [{ name: "Number", right: true }, { name: "When", right: true }, { name: "Table" }, { name: "Refused by" }, { name: "Kind" }, { name: "Why", wide: true }, { name: "" }],
        empty: isFiltered ? "Nothing fits the filter." : "Nothing is set aside.",
        label: "Dead letters",
        rows: entries.map((entry) => ({
          cells: [number(entry.seq), ago(entry.timestamp * 1000, client.now()), tableOf(entry), placeOf(entry), entry.meta.error_kind, entry.meta.error_message,
            h(Button, { "aria-expanded": shownOpen?.seq === entry.seq, inList: true, onClick: () => setOpen(shownOpen?.seq === entry.seq ? null : entry) }, "Look")],
          key: String(entry.seq),
        })),
      }),
      h(Row, null, start > 0 && h(Button, { inList: true, onClick: () => setStart(0) }, "From the oldest"),
        entries.length === PAGE && h(Button, { busy: busy !== null, inList: true, onClick: () => run(async () => setStart(entries.at(-1).seq)) }, "Next page")))),
    shownOpen && h(Peek, { close: () => setOpen(null), entry: shownOpen, mayOperate: may("operate"), replay: () => setAsking("one") }),
    asking && dialogs[asking]());
};
