// ---- What a script says, and what went wrong ----

let lines = "";
let lineCount = 0;
let hidden = 0;
let notes = "";
let noteCount = 0;
const noted = { __proto__: null };

// The beginning of a text as JSON, whole characters only.
function beginning(text, most) {
  return stringify(toWellFormed(cut(text, 0, most)));
}

function note(what, name) {
  if (noteCount >= 50 || name in noted) return;
  noted[name] = 1;
  notes += `${notes === "" ? "" : ","}[${stringify(what)},${beginning(name, 100)}]`;
  noteCount++;
}

function said() {
  const found = `"logs":[${lines}],"hidden":${hidden},"notes":[${notes}]`;
  lines = notes = "";
  lineCount = hidden = 0;
  return found;
}

function spoken(value) {
  try {
    if (typeof value === "string") return value;
    if (value instanceof Failure) return `${value.name}: ${value.message}`;
    const written = typeof value === "object" && value !== null ? stringify(value) : undefined;
    return written === undefined ? StringOf(value) : written;
  } catch (error) {
    return "(cannot be shown)";
  }
}

function speaker(level) {
  return function (...values) {
    if (lineCount >= 50) {
      hidden++;
      return;
    }
    let line = "";
    for (let i = 0; i < values.length; i++) line += (i ? " " : "") + spoken(values[i]);
    lines += `${lineCount++ ? "," : ""}[${stringify(level)},${beginning(line, 1000)}]`;
  };
}

// An error as JSON: whether it is ours (its text holds no values), its text or name, its stack.
const ours = new WeakSet();
const isOurs = keep(WeakSet.prototype.has);
const addOurs = keep(WeakSet.prototype.add);
function refused(message) {
  const error = new TypeFailure(message);
  addOurs(ours, error);
  return error;
}

function described(error) {
  let name = kind(error);
  let stack = "";
  try {
    if (isOurs(ours, error)) return `[true,${beginning(error.message, 1000)},""]`;
    if (error instanceof Failure) {
      name = cut(StringOf(error.name), 0, 60);
      stack = cut(StringOf(error.stack), 0, 4000);
    }
  } catch (another) {
    name = "an error that cannot be shown";
  }
  return `[false,${beginning(name, 60)},${beginning(stack, 4000)}]`;
}

// ---- The doors ----

// Where Python lays what it hands over: passing arguments would ask the script's prototypes.
const desk = { __proto__: null, text: null, entry: null, perEvent: false, size: 0 };
let entry = null;
let perEvent = false;

function run() {
  const batch = new Batch(desk.text);
  desk.text = null;
  forgetTags();
  const oneByOne = batch.each || perEvent;
  const output = new Output(batch, oneByOne, perEvent);
  const { count, rows } = batch;
  if (!oneByOne) {
    const events = empties(count);
    for (let i = 0; i < count; i++) events[i] = rows[i].proxy;
    try {
      output.take(entry(events), events, 0);
    } catch (error) {
      return `{"failed":${described(error)},${said()}}`;
    }
    return output.finished();
  }
  for (let i = 0; i < count; i++) {
    const { proxy } = rows[i];
    try {
      if (perEvent) {
        output.takeOne(entry(proxy), i);
      } else {
        const given = [proxy];
        output.take(entry(given), given, i);
      }
    } catch (error) {
      output.fail(i, error);
    }
  }
  return output.finished();
}

function load() {
  entry = desk.entry;
  perEvent = desk.perEvent;
  return `{${said()}}`;
}

function reserve() {
  shared = new BufferOf(desk.size);
  return shared;
}

const talk = { log: speaker("info"), info: speaker("info"), debug: speaker("debug"),
  warn: speaker("warning"), error: speaker("error") };
defineProperty(globalThis, "console", { value: talk, writable: true, configurable: true });
defineProperty(globalThis, "route", { writable: true, configurable: true,
  value: function route(event, wanted) {
    const own = event === null || typeof event !== "object" ? undefined : event.route;
    if (typeof own === "function") own(wanted);
    else put(event, "__routing", routing(wanted));
  } });
// A processor is synchronous, and its memory is the heap.
setTimeout = clearTimeout = __timer_manager = undefined;
for (const name of ["Atomics", "SharedArrayBuffer", "WebAssembly"]) delete globalThis[name];
