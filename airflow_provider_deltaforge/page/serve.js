// The page behind `deltaforge serve`.

import { h, useMemo, useState } from "./react.js";
import { Alert, Button, Heading, Input } from "./kit.js";
import { App } from "./app.js";
import { Client, clientOf } from "./client.js";
import { Command, Field, Row, Stack, Words } from "./parts.js";

const TOKEN = "deltaforge-token";
// The API lies beside the page's folder, wherever a proxy puts both.
const BASE = new URL("../", import.meta.url);

const SignIn = ({ error, signIn }) => {
  const [typed, setTyped] = useState("");
  const submit = (event) => {
    event.preventDefault();
    if (typed.trim()) signIn(typed.trim());
  };
  return h("form", { onSubmit: submit },
    h(Stack, { narrow: true },
      h(Heading, { level: 2 }, "Sign in"),
      error.code === "UNKNOWN_TOKEN" && h(Alert, { title: "This token is not known", tone: "error" }, "It was mistyped, or revoked."),
      h("p", null, h(Words, { text: "This server asks for a token. Somebody with a shell on it makes one:" })),
      h(Command, { label: "The command" }, "deltaforge token create NAME --scope operate"),
      h(Field, { hint: "It is kept in this browser tab until you close it, and sent to this server only.", label: "Token" },
        h(Input, { autoComplete: "off", autoFocus: true, name: "token", onChange: ({ target }) => setTyped(target.value), type: "password", value: typed })),
      h(Row, null, h(Button, { disabled: !typed.trim(), kind: "solid", type: "submit" }, "Sign in"))));
};

const Empty = () =>
  h(Stack, { narrow: true },
    h(Heading, { level: 2 }, "No pipelines yet"),
    h("p", null, h(Words, { text: "Create one here from a document, or put documents into the folder that `deltaforge serve FOLDER` reads when it starts." })));

const Page = () => {
  const [token, setToken] = useState(() => globalThis.sessionStorage.getItem(TOKEN));
  const client = useMemo(() => clientOf({ base: BASE, token }), [token]);
  const keep = (value) => {
    if (value) globalThis.sessionStorage.setItem(TOKEN, value);
    else globalThis.sessionStorage.removeItem(TOKEN);
    setToken(value);
  };
  const explain = (error) => error.status === 401 && h(SignIn, { error, signIn: keep });
  const aside = token && h(Button, { inList: true, kind: "plain", onClick: () => keep(null) }, "Sign out");
  return h("main", { className: "df" }, h(Client.Provider, { value: client },
    h(App, { aside, empty: h(Empty, null), explain: (error) => explain(error) || null, key: token })));
};

globalThis.ReactDOM.createRoot(document.getElementById("page")).render(h(Page));
