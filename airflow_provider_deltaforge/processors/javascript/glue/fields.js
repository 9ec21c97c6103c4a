// ---- Text, which no sink takes with half a surrogate pair ----

function wellFormed(value, what) {
  if (isWellFormed(value)) return value;
  throw refused(`${what} holds half a surrogate pair`);
}

// ---- Where an event goes ----

function text(value, what) {
  switch (typeof value) {
    case "string": return wellFormed(value, `route: ${what}`);
    case "number": case "bigint": case "boolean": return StringOf(value);
    case "undefined": return null;
    default:
      if (value === null) return null;
      throw refused(`route: ${what} must be text`);
  }
}

function routing(wanted) {
  if (wanted === undefined || wanted === null) return null;
  if (typeof wanted !== "object") throw refused("route: expects an object");
  const names = keys(wanted);
  for (let i = 0; i < names.length; i++) {
    if (!(names[i] in ROUTE_KEYS)) {
      throw refused("route: knows topic, key, headers and raw_payload only");
    }
  }
  const raw = wanted.raw_payload ?? null;
  if (raw !== null && typeof raw !== "boolean") {
    throw refused("route: raw_payload must be true or false");
  }
  return { topic: text(wanted.topic, "topic"), key: text(wanted.key, "key"),
    headers: headers(wanted.headers), raw_payload: raw };
}

function headers(wanted) {
  if (wanted === undefined || wanted === null) return null;
  if (typeof wanted !== "object") throw refused("route: headers must be an object");
  const found = {};
  const names = keys(wanted);
  for (let i = 0; i < names.length; i++) {
    wellFormed(names[i], "route: the name of every header");
    const value = text(wanted[names[i]], "every header");
    if (value !== null) put(found, names[i], value);
  }
  return found;
}

function routingText(routed) {
  if (routed === null) return "null";
  let pairs = "null";
  if (routed.headers !== null) {
    pairs = "";
    const names = keys(routed.headers);
    for (let i = 0; i < names.length; i++) {
      pairs += `${i ? "," : ""}[${stringify(names[i])},${stringify(routed.headers[names[i]])}]`;
    }
    pairs = `[${pairs}]`;
  }
  return `[${orNull(routed.topic)},${pairs},${StringOf(routed.raw_payload)}]`;
}

function orNull(value) {
  return value === null || value === undefined ? "null" : stringify(value);
}

// ---- Checking single fields; undefined means unchanged ----

function image(value, field, batch, i) {
  const at = field === "after" ? batch.afterAt : batch.beforeAt;
  const known = i >= 0;
  const was = known ? cut(batch.text, at[i], at[i + 1]) : "";
  if (value === null || value === undefined) {
    return known && (was === "" || was === "null") ? undefined : "null";
  }
  const written = imageText(value);
  if (was !== "" && written !== undefined) {
    if (written === was) return undefined;
    // Blanks, the spelling of numbers and repeated keys are lost in parsing: that alone is no
    // change. Flags know nothing of repeated keys, without which a text is shorter.
    const flags = field === "after" ? batch.afterFlag : batch.beforeFlag;
    const lost = flags[i] !== 0 || written.length < was.length;
    if (lost && written === batch.rows[i].respelt(field)) return undefined;
  }
  // What a source or an outbox put there may be any JSON; what a script puts there is a row.
  if (typeof value !== "object" || isArray(value)) {
    throw refused(`${field} must be an object or null, not ${kind(value)}`);
  }
  if (written === undefined || codeAt(written, 0) !== 123) {
    throw refused(`${field} must be an object or null`);
  }
  // PostgreSQL's json takes halves: those of the row itself stay as they are.
  if (hasHalf(written) && !(known && hasHalf(batch.rows[i].respelt(field)))) {
    throw refused(`${field} holds text with half a surrogate pair`);
  }
  return written;
}

function hasHalf(written) {
  return (holds(written, "\\ud") || holds(written, "\\uD")) && matches(HALF, written) !== null;
}

// An image as JSON: numbers that JSON has no form for are strings, as in rows of sources.
function imageText(value) {
  const written = stringify(value);
  if (written === undefined || !holds(written, "null") || !hasNoForm(value)) return written;
  return stringify(value, formed);
}

// At any depth, as V8 writes JSON: what is still to be looked at is a list.
function hasNoForm(image) {
  let rest = { value: image, next: null };
  while (rest !== null) {
    const { value } = rest;
    rest = rest.next;
    if (typeof value === "number" && !isFinite(value)) return true;
    if (value === null || typeof value !== "object") continue;
    const names = keys(value);
    for (let i = 0; i < names.length; i++) rest = { value: value[names[i]], next: rest };
  }
  return false;
}

function formed(key, value) {
  return typeof value !== "number" || isFinite(value) ? value : StringOf(value);
}

function headFrom(op, source, head, header) {
  if (source === null || typeof source !== "object") {
    throw refused(`source must be an object, not ${kind(source)}`);
  }
  const { db, table } = source;
  const schema = source.schema ?? null;
  if (typeof db !== "string") throw refused(`source.db must be text, not ${kind(db)}`);
  if (typeof table !== "string") {
    throw refused(`source.table must be text, not ${kind(table)}`);
  }
  if (schema !== null && typeof schema !== "string") {
    throw refused(`source.schema must be text, not ${kind(schema)}`);
  }
  if (head !== null) {
    if (source.connector !== header.connector) note("fixed", "source.connector");
    if (source.name !== header.name) note("fixed", "source.name");
    if (db === head[1] && table === head[3] && schema === head[2] && op === head[0]) {
      return undefined;
    }
  }
  return headOf(op, db, schema, table);
}

function headOf(op, db, schema, table) {
  if (typeof op !== "string" || !(op in OPS)) {
    throw refused("op must be one of c, u, d, r, t and ddl");
  }
  wellFormed(db, "source.db");
  wellFormed(table, "source.table");
  if (schema !== null) wellFormed(schema, "source.schema");
  return `[${stringify(op)},${stringify(db)},${orNull(schema)},${stringify(table)}]`;
}

function moved(source, head) {
  return source.db !== head[1] || source.table !== head[3] || (source.schema ?? null) !== head[2];
}

function time(value, was) {
  if (value === was && was !== undefined) return undefined;
  if (!isSafeInteger(value)) throw refused("ts_ms must be a whole number");
  return shown(value, 10);
}

// A list of tags is written once for each batch: it is found by going from one tag to the next.
let noTags = null;
function forgetTags() {
  noTags = { text: "[", list: "[]", longer: null };
}

function longer(tags, tag) {
  if (tags.longer === null) tags.longer = new MapOf();
  let found = mapGet(tags.longer, tag);
  if (found === undefined) {
    wellFormed(tag, "a tag");
    const text = `${tags.text}${tags === noTags ? "" : ","}${stringify(tag)}`;
    found = { text, list: `${text}]`, longer: null };
    mapSet(tags.longer, tag, found);
  }
  return found;
}

function tagged(tags, was) {
  if (tags === undefined || tags === null) return was === null ? undefined : "null";
  if (!isArray(tags)) throw refused(`tags must be an array of text, not ${kind(tags)}`);
  let known = noTags;
  for (let i = 0; i < tags.length; i++) {
    const tag = tags[i];
    if (typeof tag !== "string") {
      throw refused(`tags must be an array of text; it holds ${kind(tag)}`);
    }
    known = longer(known, tag);
  }
  return known.list;
}

function sameMisc(event, batch, at) {
  const version = batch.version[at] < 0 ? null : batch.header.versions[batch.version[at]];
  const sequence = batch.sequence[at] < 0 ? null : batch.sequence[at];
  return (event.schema_version ?? null) === version
    && (event.schema_sequence ?? null) === sequence
    && (event.synthetic ?? null) === batch.extra("synthetic", at);
}

function miscOf(version, sequence, synthetic) {
  if (sequence !== null && sequence !== undefined && !isSafeInteger(sequence)) {
    throw refused("schema_sequence must be a whole number");
  }
  const number = sequence === null || sequence === undefined ? "null" : shown(sequence, 10);
  return `[${named(version, "schema_version")},${number},${named(synthetic, "synthetic")}]`;
}

function named(value, field) {
  if (value !== null && value !== undefined && typeof value !== "string") {
    throw refused(`${field} must be text, not ${kind(value)}`);
  }
  if (typeof value === "string") wellFormed(value, field);
  return orNull(value);
}

function checkNames(object, batch, at, own) {
  const names = keys(object);
  for (let i = 0; i < names.length; i++) {
    if (!(names[i] in KNOWN)) note("unknown", names[i]);
  }
  if (batch === null) return;
  if (own && object.event_id !== batch.eventId(at)) note("fixed", "event_id");
  if (object.tenant_id !== batch.header.tenant) note("fixed", "tenant_id");
  if (object.trace_id !== undefined) note("fixed", "trace_id");
}

function listed(returned, given) {
  if (returned === undefined || returned === null) return given;
  if (isArray(returned)) return returned;
  if (typeof returned !== "object") throw refused(`returned ${kind(returned)}`);
  if (typeof returned.then === "function") {
    throw refused("returned a promise; a processor's functions cannot be async");
  }
  return [returned];
}

function kind(value) {
  if (value === null) return "null";
  if (value === undefined) return "undefined";
  return isArray(value) ? "an array" : `a ${typeof value}`;
}
