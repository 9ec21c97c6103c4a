// Pause, resume and stop.

import { change } from "./asking.js";
import { Notice } from "./parts.js";

const { createElement: h, useState } = globalThis.React;
const { Button, HStack, Text, VStack } = globalThis.ChakraUI;

const HOLDABLE = new Set(["blocked", "running", "snapshotting", "starting"]);

const Confirm = ({ busy, keep, name, stop, supervisor }) =>
  h(
    VStack,
    { align: "end", gap: 1 },
    h(
      HStack,
      null,
      h(Text, { fontSize: "sm" }, `Stop ${name}?`),
      h(Button, { autoFocus: true, colorPalette: "danger", loading: busy, onClick: stop, size: "sm" }, "Stop it"),
      h(Button, { onClick: keep, size: "sm", variant: "outline" }, "Keep it"),
    ),
    supervisor && h(Text, { color: "fg.muted", fontSize: "xs" },
      `A later run of ${supervisor.dag_id} starts it again; pause that DAG to keep it stopped.`),
  );

export const Actions = ({ connId, pipeline, refresh }) => {
  const [busy, setBusy] = useState(null);
  const [asking, setAsking] = useState(false);
  const [error, setError] = useState(null);
  const { desired, may_change, name, status, supervisor } = pipeline;
  if (!may_change) {
    return h(Text, { color: "fg.muted", fontSize: "sm" }, "You may look at it, not change it.");
  }
  const send = async (verb) => {
    setBusy(verb);
    setError(null);
    try {
      await change(name, verb, connId);
      refresh();
    } catch (refusal) {
      setError(refusal.detail);
    }
    setBusy(null);
    setAsking(false);
  };
  const button = (verb, word, onClick = () => send(verb)) =>
    h(Button, { disabled: busy !== null, loading: busy === verb, onClick, size: "sm", variant: "outline" }, word);
  const wanted = pipeline.generation > 0 && desired !== "stopped";
  return h(
    VStack,
    { align: "end" },
    asking
      ? h(Confirm, { busy: busy === "stop", keep: () => setAsking(false), name, stop: () => send("stop"), supervisor })
      : h(HStack, null,
        wanted && desired === "running" && HOLDABLE.has(status) && button("pause", "Pause"),
        wanted && desired === "paused" && button("resume", "Resume"),
        wanted && button("stop", "Stop", () => setAsking(true))),
    error && h(Notice, { status: "error" }, error),
  );
};
