// What to read in Airflow where nothing is to be shown: the next step, whatever is missing.

import { h } from "./react.js";
import { Alert, Button, Heading, Link } from "./kit.js";
import { Command, Stack, Words } from "./parts.js";

// The id comes from the address, so a link can hold anything; a shell is offered plain words only.
const PLAIN_ID = /^\w[\w.-]*$/;

export const NoConnection = ({ connId, message }) =>
  h(Stack, { narrow: true },
    h(Heading, { level: 2 }, "First, a connection"),
    h("p", null, `This page reads a state store, and ${message}.`),
    h("p", null, "Create one under ", h(Link, { to: "/connections" }, "Admin, Connections"),
      h(Words, { text: ", type DeltaForge state store, id " }), h("code", null, connId), PLAIN_ID.test(connId) ? "; or in a shell:" : "."),
    PLAIN_ID.test(connId) && h(Command, { label: "The command" },
      `airflow connections add ${connId} --conn-type deltaforge \\\n    --conn-extra '{"path": "/var/lib/deltaforge/state.db"}'`),
    h("p", null, "The path is of the machine that runs the drivers. For drivers on several machines, name a PostgreSQL database instead: host, login, password, database."),
    h("p", { className: "df-muted" }, h(Words, { text: "A connection of another id is shown with `?conn_id=ID` at the end of this page's address." })));

export const WrongConnection = ({ message }) =>
  h(Alert, { title: "This connection names no state store", tone: "error" }, h("p", null, message),
    h("p", null, "Correct the connection; its test button asks the same question."));

export const SignedOut = () =>
  h(Alert, { title: "Your session has ended", tone: "error" },
    h(Button, { onClick: () => globalThis.location.reload() }, "Sign in"));

export const NoPipelines = ({ connId, dagId }) => {
  if (dagId) {
    return h(Stack, { narrow: true },
      h(Heading, { level: 2 }, "No pipeline of this DAG"),
      h("p", null, h(Words, { text: `Once a task of \`${dagId}\` starts a pipeline or adopts its driver, it is shown here.` })),
      h("p", null, "All pipelines: ", h(Link, { to: "/plugin/deltaforge" }, "DeltaForge"), "."));
  }
  return h(Stack, { narrow: true },
    h(Heading, { level: 2 }, "No pipelines yet"),
    h("p", null, h(Words, { text: `The connection \`${connId}\` works, and its state store holds no pipeline. Trigger a DAG that has a \`DeltaForgeStreamOperator\`, or start one in a shell, with the store this connection names:` })),
    h(Command, { label: "The commands" }, "deltaforge preflight orders.yaml\ndeltaforge run orders.yaml --store sqlite:////var/lib/deltaforge/state.db"),
    h("p", { className: "df-muted" }, "It appears here within two seconds."));
};
