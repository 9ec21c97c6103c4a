// What to read where nothing is to be shown: the next step, whatever is missing.

import { Command, Notice, Stack, Words } from "./parts.js";

const { createElement: h } = globalThis.React;
const { Button, Heading, Link, Text } = globalThis.ChakraUI;
const { Link: RouterLink } = globalThis.ReactRouterDOM;

const Connections = () =>
  h(Link, { asChild: true, color: "fg.info" }, h(RouterLink, { to: "/connections" }, "Admin, Connections"));

// The id comes from the address, so a link can hold anything; a shell is offered plain words only.
const PLAIN_ID = /^\w[\w.-]*$/;

const NoConnection = ({ connId, detail }) =>
  h(
    Stack,
    { gap: 3, maxW: "50rem" },
    h(Heading, { as: "h2", size: "md" }, "First, a connection"),
    h(Text, null, `This page reads a state store, and ${detail}.`),
    h(Text, null, "Create one under ", h(Connections), h(Words, { text: `, type DeltaForge state store, id \`${connId}\`${PLAIN_ID.test(connId) ? "; or in a shell:" : "."}` })),
    PLAIN_ID.test(connId) && h(Command, null, `airflow connections add ${connId} --conn-type deltaforge \\\n    --conn-extra '{"path": "/var/lib/deltaforge/state.db"}'`),
    h(Text, null, h(Words, { text: "The path is of the machine that runs the drivers. For drivers on several machines, name a PostgreSQL database instead: host, login, password, database." })),
    h(Text, { color: "fg.muted", fontSize: "sm" }, h(Words, { text: "A connection of another id is shown with `?conn_id=ID` at the end of this page's address." })),
  );

const away = { no_answer: "Airflow's API server does not answer", signed_out: "Your session has ended",
  store_away: "The state store does not answer", store_refused: "The state store cannot be read",
  unknown_pipeline: "No such pipeline", wrong_connection: "The wrong kind of connection" };

const hints = {
  no_answer: "This page asks again every two seconds.",
  store_away: "This page asks again every two seconds. Drivers are not stopped by this; they wait at their next checkpoint until the store answers.",
  store_refused: "Correct the connection; its test button asks the same question.",
};

export const Trouble = ({ connId, error, stale }) => {
  if (error.code === "no_connection") return h(NoConnection, { connId, detail: error.detail });
  const title = away[error.code] ?? "This cannot be shown";
  return h(
    Notice,
    { status: error.code === "unknown_pipeline" ? "warning" : "error", title: stale ? `${title}; what is below is old` : title },
    h(Text, null, error.detail),
    hints[error.code] && h(Text, null, hints[error.code]),
    error.code === "signed_out" && h(Button, { mt: 2, onClick: () => globalThis.location.reload(), size: "sm" }, "Sign in"),
  );
};

export const NoPipelines = ({ connId, dagId }) => {
  if (dagId) {
    return h(
      Stack,
      { gap: 2, maxW: "50rem" },
      h(Heading, { as: "h2", size: "md" }, "No pipeline of this DAG"),
      h(Text, null, h(Words, { text: `Once a task of \`${dagId}\` starts a pipeline or adopts its driver, it is shown here.` })),
      h(Text, null, "All pipelines: ", h(Link, { asChild: true, color: "fg.info" }, h(RouterLink, { to: "/plugin/deltaforge" }, "DeltaForge")), "."),
    );
  }
  return h(
    Stack,
    { gap: 3, maxW: "50rem" },
    h(Heading, { as: "h2", size: "md" }, "No pipelines yet"),
    h(Text, null, h(Words, { text: `The connection \`${connId}\` works, and its state store holds no pipeline. Trigger a DAG that has a \`DeltaForgeStreamOperator\`, or start one in a shell, with the store this connection names:` })),
    h(Command, null, "deltaforge preflight orders.yaml\ndeltaforge run orders.yaml --store sqlite:////var/lib/deltaforge/state.db"),
    h(Text, { color: "fg.muted" }, "It appears here within two seconds."),
  );
};
