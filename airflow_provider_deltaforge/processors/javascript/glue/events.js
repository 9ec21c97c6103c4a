// An event is a Proxy over an empty object. Until a script does something that needs the whole
// event (lists its keys, deletes one, spreads it), the handler answers from the columns and parses
// an image when it is first read. After that (`whole`) the target is an ordinary object.

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
    if ((flags[i] & 4) !== 0) return readByToken(text);
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
    this.beforeWas = undefined;
    this.afterWas = undefined;
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
      const { beforeAt, beforeFlag } = this.batch;
      this.before = this.batch.image(beforeAt, beforeFlag, this.index);
      // How it would be written, where that differs from how it is: to tell changes from blanks.
      if (beforeFlag[this.index] !== 0) this.beforeWas = stringify(this.before);
    }
    return this.before;
  }

  readAfter() {
    if (this.after === UNREAD) {
      const { afterAt, afterFlag } = this.batch;
      this.after = this.batch.image(afterAt, afterFlag, this.index);
      if (afterFlag[this.index] !== 0) this.afterWas = stringify(this.after);
    }
    return this.after;
  }

  respelt(field) {
    const { batch, index } = this;
    if (field === "after") {
      return this.afterWas ?? stringify(batch.image(batch.afterAt, batch.afterFlag, index));
    }
    return this.beforeWas ?? stringify(batch.image(batch.beforeAt, batch.beforeFlag, index));
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
