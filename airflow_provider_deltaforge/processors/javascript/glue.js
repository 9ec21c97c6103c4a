// What stands between a script and the columns of a batch.
//
// An event is a Proxy over an empty object. Until a script does something that needs the whole
// event (lists its keys, deletes one, spreads it), the handler answers from the columns and parses
// an image when it is first read. After that (`whole`) the target is an ordinary object.
//
// Everything used here is kept before the script runs, and nothing is assigned to an element or a
// key that does not exist already: a script may change every prototype without reaching us.
(function () {
  "use strict";
  const keep = Function.prototype.bind.bind(Function.prototype.call);
  const { parse, stringify, rawJSON } = JSON;
  const { defineProperty, ownKeys, has, get: reflectGet, set: reflectSet } = Reflect;
  const { deleteProperty, preventExtensions, getOwnPropertyDescriptor } = Reflect;
  const { isArray } = Array;
  const { isFinite, isSafeInteger } = Number;
  const { keys, setPrototypeOf } = Object;
  const [BigIntOf, StringOf, MapOf, ProxyOf, Ints] = [BigInt, String, Map, Proxy, Int32Array];
  const [Floats, Bytes, Failure, TypeFailure] = [Float64Array, Uint8Array, Error, TypeError];
  const BufferOf = ArrayBuffer;
  const cut = keep(String.prototype.substring);
  const codeAt = keep(String.prototype.charCodeAt);
  const matches = keep(RegExp.prototype.exec);
  const mapGet = keep(Map.prototype.get);
  const mapSet = keep(Map.prototype.set);
  const mapSize = keep(getOwnPropertyDescriptor(Map.prototype, "size").get);
  const copyBuffer = keep(ArrayBuffer.prototype.slice);
  const digits = keep(BigInt.prototype.toString);
  const shown = keep(Number.prototype.toString);

  const UNREAD = {};
  const ALWAYS = { __proto__: null, before: 1, after: 1, source: 1, op: 1, ts_ms: 1, event_id: 1,
    tenant_id: 1 };
  const KNOWN = { __proto__: null, ...ALWAYS, transaction: 1, schema_version: 1,
    schema_sequence: 1, ddl: 1, trace_id: 1, tags: 1, synthetic: 1, tx_end: 1, __routing: 1 };
  const OPS = { __proto__: null, c: 1, u: 1, d: 1, r: 1, t: 1, ddl: 1 };
  const ROUTE_KEYS = { __proto__: null, topic: 1, key: 1, headers: 1, raw_payload: 1 };
  const LONG = /\d{16}/;
  const WHOLE = /^-?\d+$/;
  const HEX = [];
  for (let i = 0; i < 256; i++) HEX.push((i < 16 ? "0" : "") + i.toString(16));
  const MOST_RETURNED = 5000000;

  // ---- Numbers: integers that a double cannot hold are BigInts, and are written as numbers ----

  function exact(key, value, context) {
    if (typeof value !== "number" || isSafeInteger(value) || context.source === undefined) {
      return value;
    }
    if (matches(WHOLE, context.source) !== null) return BigIntOf(context.source);
    return isFinite(value) ? value : rawJSON(context.source);
  }

  defineProperty(BigInt.prototype, "toJSON", { __proto__: null, writable: true,
    configurable: true, value: function toJSON() { return rawJSON(digits(this)); } });
  defineProperty(JSON, "parse", { __proto__: null, writable: true, configurable: true,
    value: function (text, reviver) {
      if (reviver !== undefined) return parse(text, reviver);
      const whole = StringOf(text);
      return matches(LONG, whole) === null ? parse(whole) : parse(whole, exact);
    } });

  // ---- The columns of one batch, as laid out by `handing.py` ----

  let shared = new ArrayBuffer(0);

  class Batch {
    constructor(text) {
      const control = new Ints(shared, 0, 4);
      const count = control[0];
      const data = copyBuffer(shared, 0, control[3]);
      let at = 16;
      const column = (Type, width, length) => {
        const found = new Type(data, at, length);
        at += width * length;
        return found;
      };
      this.count = count;
      this.text = text;
      this.each = control[2] === 1;
      this.header = parse(cut(text, 0, control[1]));
      this.ts = column(Floats, 8, count);
      this.sequence = column(Floats, 8, count);
      this.beforeAt = column(Ints, 4, count + 1);
      this.afterAt = column(Ints, 4, count + 1);
      this.head = column(Ints, 4, count);
      this.position = column(Ints, 4, count);
      this.row = column(Ints, 4, count);
      this.tx = column(Ints, 4, count);
      this.version = column(Ints, 4, count);
      this.beforeFlag = column(Bytes, 1, count);
      this.afterFlag = column(Bytes, 1, count);
      this.txEnd = column(Bytes, 1, count);
      this.id = column(Bytes, 1, 16 * count);
      this.rows = empties(count);
      for (let i = 0; i < count; i++) this.rows[i] = new Row(this, i);
    }

    image(at, flags, i) {
      const from = at[i];
      const to = at[i + 1];
      if (from === to) return null;
      const text = cut(this.text, from, to);
      return (flags[i] & 2) === 0 ? parse(text) : parse(text, exact);
    }

    extra(name, i) {
      const column = this.header[name];
      return column === null ? null : column[i];
    }

    eventId(i) {
      let text = "";
      const from = 16 * i;
      for (let k = 0; k < 16; k++) {
        text += HEX[this.id[from + k]];
        if (k === 3 || k === 5 || k === 7 || k === 9) text += "-";
      }
      return text;
    }

    source(i) {
      const { version, connector, name, heads, positions } = this.header;
      const head = heads[this.head[i]];
      const place = head[2] === null ? { db: head[1], table: head[3] }
        : { db: head[1], schema: head[2], table: head[3] };
      if (head[0] === "r") put(place, "snapshot", "true");
      const ts_ms = this.ts[i];
      if (this.position[i] < 0) return { version, connector, name, ts_ms, ...place };
      const position = parse(positions[this.position[i]]);
      return { version, connector, name, ts_ms, ...place, ...position, row: this.row[i] };
    }
  }

  // An array of nulls that are its own: assigning to them asks no prototype.
  let nulls = "[]";
  let nullCount = 0;
  function empties(count) {
    if (count !== nullCount) {
      nulls = "[";
      for (let i = 0; i < count; i++) nulls += i ? ",0" : "0";
      nulls += "]";
      nullCount = count;
    }
    return parse(nulls);
  }

  const ordinary = { __proto__: null, value: null, writable: true, enumerable: true,
    configurable: true };
  function put(object, key, value) {
    ordinary.value = value;
    defineProperty(object, key, ordinary);
    ordinary.value = null;
  }

  // ---- One event: the handler of its proxy ----

  class Row {
    constructor(batch, index) {
      this.batch = batch;
      this.index = index;
      this.whole = false;
      this.before = UNREAD;
      this.after = UNREAD;
      this.source = UNREAD;
      this.op = batch.header.heads[batch.head[index]][0];
      this.tsMs = batch.ts[index];
      this.tags = batch.header.tags === null ? undefined : batch.header.tags[index] ?? undefined;
      this.routing = undefined;
      this.target = {};
      this.proxy = new ProxyOf(this.target, this);
    }

    readBefore() {
      if (this.before === UNREAD) {
        this.before = this.batch.image(this.batch.beforeAt, this.batch.beforeFlag, this.index);
      }
      return this.before;
    }

    readAfter() {
      if (this.after === UNREAD) {
        this.after = this.batch.image(this.batch.afterAt, this.batch.afterFlag, this.index);
      }
      return this.after;
    }

    readSource() {
      if (this.source === UNREAD) this.source = this.batch.source(this.index);
      return this.source;
    }

    fullName() {
      const source = this.whole ? reflectGet(this.target, "source") : this.source;
      if (source === UNREAD || source === null || typeof source !== "object") {
        return this.batch.header.heads[this.batch.head[this.index]][4];
      }
      return `${source.schema ?? source.db}.${source.table}`;
    }

    currentRouting() {
      if (this.routing !== undefined) return this.routing;
      return this.batch.extra("routing", this.index);
    }

    // Make the target the ordinary object that the columns describe.
    settle() {
      if (this.whole) return;
      const { batch, index, target } = this;
      const { heads, txids, versions, tenant } = batch.header;
      const extras = ownKeys(target);
      const values = { __proto__: null };
      for (let i = 0; i < extras.length; i++) {
        values[extras[i]] = target[extras[i]];
        deleteProperty(target, extras[i]);
      }
      put(target, "before", this.readBefore());
      put(target, "after", this.readAfter());
      put(target, "source", this.readSource());
      put(target, "op", this.op);
      put(target, "ts_ms", this.tsMs);
      if (batch.tx[index] >= 0) {
        put(target, "transaction",
          { id: txids[batch.tx[index]], total_order: batch.row[index] + 1 });
      }
      put(target, "event_id", batch.eventId(index));
      put(target, "tenant_id", tenant);
      if (batch.version[index] >= 0) put(target, "schema_version", versions[batch.version[index]]);
      if (batch.sequence[index] >= 0) put(target, "schema_sequence", batch.sequence[index]);
      const ddl = batch.extra("ddl", index);
      if (ddl !== null) put(target, "ddl", parse(ddl));
      if (this.tags !== undefined) put(target, "tags", this.tags);
      const synthetic = batch.extra("synthetic", index);
      if (synthetic !== null) put(target, "synthetic", synthetic);
      if (batch.txEnd[index] === 1) put(target, "tx_end", true);
      for (let i = 0; i < extras.length; i++) put(target, extras[i], values[extras[i]]);
      this.whole = true;
      // From here on the target answers for itself.
      this.getOwnPropertyDescriptor = this.defineProperty = this.preventExtensions = undefined;
      this.ownKeys = undefined;
    }

    get(target, key) {
      switch (key) {
        case "after": if (!this.whole) return this.readAfter(); break;
        case "op": if (!this.whole) return this.op; break;
        case "before": if (!this.whole) return this.readBefore(); break;
        case "tags": if (!this.whole) return this.tags; break;
        case "table": return this.fullName();
        case "source": if (!this.whole) return this.readSource(); break;
        case "ts_ms": if (!this.whole) return this.tsMs; break;
        case "timestamp": return this.whole ? reflectGet(target, "ts_ms") : this.tsMs;
        case "route": return (wanted) => { this.routing = routing(wanted); };
        case "__routing": return this.currentRouting() ?? undefined;
        case "event_id": if (!this.whole) return this.batch.eventId(this.index); break;
        default: if (!this.whole && key in KNOWN) this.settle();
      }
      return target[key];
    }

    set(target, key, value, receiver) {
      if (key === "table" || key === "timestamp" || key === "route") return false;
      if (key === "__routing") {
        this.routing = routing(value);
        return true;
      }
      if (!this.whole && receiver === this.proxy) {
        switch (key) {
          case "after": this.after = value; return true;
          case "before": this.before = value; return true;
          case "tags": this.tags = value; return true;
          case "op": this.op = value; return true;
          case "ts_ms": this.tsMs = value; return true;
          case "source": this.source = value; return true;
          default:
            if (!(key in KNOWN) && typeof key === "string") {
              note("unknown", key);
              put(target, key, value);
              return true;
            }
        }
      }
      this.settle();
      return reflectSet(target, key, value, receiver === this.proxy ? target : receiver);
    }

    has(target, key) {
      if (key === "table" || key === "timestamp" || key === "route") return true;
      if (!this.whole && key in ALWAYS) return true;
      this.settle();
      return has(target, key);
    }

    deleteProperty(target, key) {
      if (key === "__routing") this.routing = null;
      this.settle();
      return deleteProperty(target, key);
    }

    ownKeys(target) {
      this.settle();
      return ownKeys(target);
    }

    getOwnPropertyDescriptor(target, key) {
      this.settle();
      return getOwnPropertyDescriptor(target, key);
    }

    defineProperty(target, key, descriptor) {
      this.settle();
      return defineProperty(target, key, descriptor);
    }

    preventExtensions(target) {
      this.settle();
      return preventExtensions(target);
    }
  }
  setPrototypeOf(Row.prototype, null);
  setPrototypeOf(Batch.prototype, null);

  // ---- Where an event goes ----

  function text(value, what) {
    switch (typeof value) {
      case "string": return value;
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

  // ---- What goes back: for each column only the events that changed ----

  class Texts {
    constructor() {
      this.count = 0;
      this.dense = true;
      this.rows = "";
      this.values = "";
    }
    add(row, value) {
      if (row !== this.count) this.dense = false;
      this.rows += this.count === 0 ? row : `,${row}`;
      this.values += this.count++ === 0 ? value : `\n${value}`;
    }
    where(total) {
      return this.dense && this.count === total ? "null" : `[${this.rows}]`;
    }
  }

  class Codes {
    constructor() {
      this.texts = new Texts();
      this.numbers = new MapOf();
      this.distinct = "";
    }
    add(row, value) {
      let code = mapGet(this.numbers, value);
      if (code === undefined) {
        code = mapSize(this.numbers);
        this.distinct += code === 0 ? value : `,${value}`;
        mapSet(this.numbers, value, code);
      }
      this.texts.add(row, code);
    }
  }

  class Output {
    constructor(batch, careful) {
      this.batch = batch;
      this.count = 0;
      this.same = true;
      this.origins = "";
      this.made = "";
      this.keyless = "";
      this.bad = "";
      this.used = new Bytes(batch.count);
      this.cursor = 0;
      this.places = null;
      this.ids = null;
      this.before = new Texts();
      this.after = new Texts();
      this.ddl = new Texts();
      this.ts = new Texts();
      this.key = new Texts();
      this.head = new Codes();
      this.tags = new Codes();
      this.routing = new Codes();
      this.misc = new Codes();
      this.columns = [this.before, this.after, this.ddl, this.ts, this.key, this.head.texts,
        this.tags.texts, this.routing.texts, this.misc.texts];
      // Whether a bad event takes everything with it that the same call returned.
      this.careful = careful;
    }

    // Which event of this batch an object is; -1 for any other object.
    place(object) {
      const { rows, count } = this.batch;
      if (this.places === null) {
        for (let i = this.cursor; i < count; i++) {
          if (rows[i].proxy === object) {
            this.cursor = i + 1;
            return i;
          }
        }
        this.places = new MapOf();
        for (let i = 0; i < count; i++) mapSet(this.places, rows[i].proxy, i);
      }
      const found = mapGet(this.places, object);
      return found === undefined ? -1 : found;
    }

    byId(id) {
      if (typeof id !== "string") return -1;
      if (this.ids === null) {
        this.ids = new MapOf();
        for (let i = 0; i < this.batch.count; i++) mapSet(this.ids, this.batch.eventId(i), i);
      }
      const found = mapGet(this.ids, id);
      return found === undefined ? -1 : found;
    }

    fail(index, error) {
      this.bad += `${this.bad === "" ? "" : ","}[${index},${described(error)}]`;
    }

    // Take what a call returned; `nearest` is where an event made from nothing belongs.
    take(returned, given, nearest) {
      const list = listed(returned, given);
      const size = list.length;
      if (size > MOST_RETURNED) throw refused("returned too many events");
      const which = new Ints(size);
      const others = new MapOf();
      const alone = new Bytes(size);
      const mark = this.careful && size > 1 ? this.mark() : null;
      for (let k = 0; k < size; k++) {
        const item = list[k];
        if (item === null || typeof item !== "object") {
          throw refused(`returned an array that holds ${kind(item)}`);
        }
        const at = this.place(item);
        which[k] = at;
        if (at < 0) mapSet(others, k, item);
        else if (this.used[at] === 0) {
          this.used[at] = 1;
          alone[k] = 1;
        }
      }
      try {
        for (let k = 0; k < size; k++) {
          const at = which[k];
          if (at < 0) {
            nearest = this.plain(mapGet(others, k), nearest);
          } else {
            nearest = at;
            this.row(this.batch.rows[at], alone[k] === 0);
          }
        }
      } catch (error) {
        if (mark !== null) this.restore(mark);
        throw error;
      }
    }

    // One event is committed whole or not at all; several of one call are, by these two.
    mark() {
      const all = this.columns;
      const kept = [this.count, this.same, this.origins, this.made, this.keyless];
      const texts = empties(all.length);
      for (let i = 0; i < all.length; i++) {
        texts[i] = [all[i].count, all[i].dense, all[i].rows, all[i].values];
      }
      return { kept, texts };
    }

    restore({ kept, texts }) {
      this.count = kept[0];
      this.same = kept[1];
      this.origins = kept[2];
      this.made = kept[3];
      this.keyless = kept[4];
      for (let i = 0; i < texts.length; i++) {
        const column = this.columns[i];
        column.count = texts[i][0];
        column.dense = texts[i][1];
        column.rows = texts[i][2];
        column.values = texts[i][3];
      }
    }

    row(row, made) {
      try {
        if (row.whole) {
          this.emit(row.target, row.index, made, row.routing, true);
          return;
        }
        const { batch, index } = row;
        const head = batch.header.heads[batch.head[index]];
        const before = row.before === UNREAD ? undefined
          : image(row.before, "before", batch, batch.beforeAt, batch.beforeFlag, index);
        const after = row.after === UNREAD ? undefined
          : image(row.after, "after", batch, batch.afterAt, batch.afterFlag, index);
        const headText = row.source === UNREAD
          ? (row.op === head[0] ? undefined : headOf(row.op, head[1], head[2], head[3]))
          : headFrom(row.op, row.source, head, batch.header);
        const ts = time(row.tsMs, batch.ts[index]);
        const tags = tagged(row.tags, batch.extra("tags", index));
        this.commit(index, made, before, after, headText, ts, tags, row.routing);
      } catch (error) {
        if (made || this.careful) throw error;
        this.fail(row.index, error);
      }
    }

    plain(object, nearest) {
      const at = this.byId(object.event_id);
      if (at < 0) {
        this.emit(object, -1, true, routing(object.__routing), false, nearest);
        return nearest;
      }
      const made = this.used[at] === 1;
      this.used[at] = 1;
      try {
        const routed = routing(object.__routing);
        const had = this.batch.extra("routing", at) !== null;
        this.emit(object, at, made, routed === null && !had ? undefined : routed, false);
      } catch (error) {
        if (made || this.careful) throw error;
        this.fail(at, error);
      }
      return at;
    }

    // Any object that looks like an event: `at` is the event it stands for or was copied from.
    emit(event, at, made, routed, own, nearest) {
      const { batch } = this;
      const known = at >= 0;
      checkNames(event, known ? batch : null, at, own);
      const head = known ? batch.header.heads[batch.head[at]] : null;
      const before = image(event.before, "before", batch, batch.beforeAt, batch.beforeFlag, at);
      const after = image(event.after, "after", batch, batch.afterAt, batch.afterFlag, at);
      const headText = headFrom(event.op, event.source, head, batch.header);
      const ts = time(event.ts_ms, known ? batch.ts[at] : undefined);
      const tags = tagged(event.tags, known ? batch.extra("tags", at) : null);
      const was = known ? batch.extra("ddl", at) : null;
      let ddl = event.ddl === undefined || event.ddl === null ? "null" : stringify(event.ddl);
      if (ddl === undefined) throw refused("ddl cannot be written as JSON");
      if (ddl === (was === null ? "null" : stringify(parse(was)))) ddl = undefined;
      const misc = known && sameMisc(event, batch, at) ? undefined
        : miscOf(event.schema_version, event.schema_sequence, event.synthetic);
      const tagText = tags ?? (known ? undefined : "null");
      if (!known) this.keyless += `${this.keyless === "" ? "" : ","}${this.count}`;
      else if (headText !== undefined && !own && moved(event.source, head)) {
        this.keyless += `${this.keyless === "" ? "" : ","}${this.count}`;
      }
      if (ddl !== undefined || !known) this.ddl.add(this.count, ddl ?? "null");
      if (misc !== undefined) this.misc.add(this.count, misc);
      this.commit(known ? at : nearest, made, before, after, headText, ts,
        tagText, known ? routed : routed ?? null);
    }

    commit(origin, made, before, after, head, ts, tags, routed) {
      const row = this.count;
      if (before !== undefined) this.before.add(row, before);
      if (after !== undefined) this.after.add(row, after);
      if (head !== undefined) this.head.add(row, head);
      if (ts !== undefined) this.ts.add(row, ts);
      if (tags !== undefined) this.tags.add(row, tags);
      if (routed !== undefined) {
        this.routing.add(row, routingText(routed));
        this.key.add(row, routed === null ? "null" : orNull(routed.key));
      }
      if (made) this.made += `${this.made === "" ? "" : ","}${row}`;
      if (origin !== row) this.same = false;
      this.origins += row === 0 ? origin : `,${origin}`;
      this.count = row + 1;
    }

    finished() {
      const total = this.count;
      const { head, tags, routing: routed, misc } = this;
      const code = (codes) => codes.texts.count === 0 ? "null"
        : `[${codes.texts.where(total)},[${codes.distinct}]]`;
      return `{"count":${total},"origins":`
        + (this.same && total === this.batch.count ? "null" : `[${this.origins}]`)
        + `,"made":[${this.made}],"keyless":[${this.keyless}],"bad":[${this.bad}]`
        + `,"before":${this.before.where(total)},"after":${this.after.where(total)}`
        + `,"ddl":${this.ddl.where(total)},"ts_ms":${this.ts.where(total)}`
        + `,"key":${this.key.where(total)},"head":${code(head)},"tags":${code(tags)}`
        + `,"routing":${code(routed)},"misc":${code(misc)},${said()}}`
        + `\x1e${this.before.values}\x1e${this.after.values}\x1e${this.ddl.values}`
        + `\x1e${this.ts.values}\x1e${this.key.values}\x1e${head.texts.values}`
        + `\x1e${tags.texts.values}\x1e${routed.texts.values}\x1e${misc.texts.values}`;
    }
  }
  for (const type of [Texts, Codes, Output]) setPrototypeOf(type.prototype, null);

  // ---- Checking single fields; undefined means unchanged ----

  function image(value, field, batch, at, flags, i) {
    const known = i >= 0;
    if (value === null || value === undefined) {
      return known && at[i] === at[i + 1] ? undefined : "null";
    }
    if (typeof value !== "object" || isArray(value)) {
      throw refused(`${field} must be an object or null, not ${kind(value)}`);
    }
    const written = stringify(value);
    if (written === undefined || codeAt(written, 0) !== 123) {
      throw refused(`${field} must be an object or null`);
    }
    if (!known) return written;
    const was = cut(batch.text, at[i], at[i + 1]);
    if (written === was) return undefined;
    // Blanks and the spelling of numbers are lost in parsing: that alone is no change.
    if (was !== "" && flags[i] !== 0) {
      if (written === stringify((flags[i] & 2) === 0 ? parse(was) : parse(was, exact))) {
        return undefined;
      }
    }
    return written;
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

  function tagged(tags, was) {
    if (tags === undefined || tags === null) return was === null ? undefined : "null";
    if (!isArray(tags)) throw refused(`tags must be an array of text, not ${kind(tags)}`);
    let written = "[";
    for (let i = 0; i < tags.length; i++) {
      const tag = tags[i];
      if (typeof tag !== "string") {
        throw refused(`tags must be an array of text; it holds ${kind(tag)}`);
      }
      written += i ? `,${stringify(tag)}` : stringify(tag);
    }
    return `${written}]`;
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

  // ---- What a script says, and what went wrong ----

  let lines = "";
  let lineCount = 0;
  let hidden = 0;
  let notes = "";
  let noteCount = 0;
  const noted = { __proto__: null };

  function note(what, name) {
    if (noteCount >= 50 || name in noted) return;
    noted[name] = 1;
    notes += `${notes === "" ? "" : ","}[${stringify(what)},${stringify(cut(name, 0, 100))}]`;
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
      lines += `${lineCount++ ? "," : ""}[${stringify(level)},${stringify(cut(line, 0, 1000))}]`;
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
      if (isOurs(ours, error)) return `[true,${stringify(error.message)},""]`;
      if (error instanceof Failure) {
        name = cut(StringOf(error.name), 0, 60);
        stack = cut(StringOf(error.stack), 0, 4000);
      }
    } catch (another) {
      name = "an error that cannot be shown";
    }
    return `[false,${stringify(name)},${stringify(stack)}]`;
  }

  // ---- The doors ----

  // Where Python lays what it hands over: passing arguments would ask the script's prototypes.
  const desk = { __proto__: null, text: null, entry: null, perEvent: false, size: 0 };
  let entry = null;
  let perEvent = false;

  function run() {
    const batch = new Batch(desk.text);
    desk.text = null;
    const oneByOne = batch.each || perEvent;
    const output = new Output(batch, oneByOne);
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
      const event = rows[i].proxy;
      try {
        const given = [event];
        output.take(perEvent ? entry(event) : entry(given), given, i);
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
  return { run, load, reserve, desk };
})()
