// ---- What goes back: for each column only the events that changed ----

class Output {
  constructor(batch, careful, perEvent) {
    this.batch = batch;
    // Whether a function of one event tells what each new object was made from.
    this.perEvent = perEvent;
    this.count = 0;
    // Whether all origins so far are the numbers of their rows, which are not written then.
    this.same = true;
    this.origins = "";
    this.made = "";
    this.keyless = "";
    this.placed = "";
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

  // Take what a call with the event `at` alone returned: most often that event.
  takeOne(returned, at) {
    const { proxy } = this.batch.rows[at];
    if ((returned === proxy || returned === undefined || returned === null)
      && this.used[at] === 0) {
      this.used[at] = 1;
      this.row(this.batch.rows[at], false);
    } else {
      this.take(returned, [proxy], at);
    }
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
    const kept = [this.count, this.same, this.origins, this.made, this.keyless, this.placed];
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
    this.placed = kept[5];
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
        : image(row.before, "before", batch, index);
      const after = row.after === UNREAD ? undefined
        : image(row.after, "after", batch, index);
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
      if (!this.perEvent) this.placed += `${this.placed === "" ? "" : ","}${this.count - 1}`;
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
    const before = image(event.before, "before", batch, at);
    const after = image(event.after, "after", batch, at);
    const headText = headFrom(event.op, event.source, head, batch.header);
    const ts = time(event.ts_ms, known ? batch.ts[at] : undefined);
    const tags = tagged(event.tags, known ? batch.extra("tags", at) : null);
    const was = known ? batch.extra("ddl", at) : null;
    let ddl = event.ddl === undefined || event.ddl === null ? "null" : stringify(event.ddl);
    if (ddl === undefined) throw refused("ddl cannot be written as JSON");
    if (hasHalf(ddl) && (was === null || !hasHalf(stringify(parse(was))))) {
      throw refused("ddl holds text with half a surrogate pair");
    }
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
      this.routing.addRouting(row, routed);
      if (routed !== null && routed.key !== null) {
        this.key.add(this.routing.texts.count - 1, stringify(routed.key));
      }
    }
    if (made) this.made += `${this.made === "" ? "" : ","}${row}`;
    if (this.same && origin !== row) {
      this.same = false;
      this.origins = ordinals(row);
    }
    if (!this.same) this.origins += row === 0 ? origin : `,${origin}`;
    this.count = row + 1;
  }

  finished() {
    const total = this.count;
    const { head, tags, routing: routed, misc } = this;
    const code = (codes) => codes.texts.count === 0 ? "null"
      : `[${codes.texts.where(total)},[${codes.distinct}]]`;
    return `{"count":${total},"origins":`
      + (this.same ? "null" : `[${this.origins}]`)
      + `,"made":[${this.made}],"keyless":[${this.keyless}],"placed":[${this.placed}],"bad":[${this.bad}]`
      + `,"before":${this.before.where(total)},"after":${this.after.where(total)}`
      + `,"ddl":${this.ddl.where(total)},"ts_ms":${this.ts.where(total)}`
      + `,"key":${this.key.where(routed.texts.count)},"head":${code(head)},"tags":${code(tags)}`
      + `,"routing":${code(routed)},"misc":${code(misc)},${said()}}`
      + `\x1e${this.before.values}\x1e${this.after.values}\x1e${this.ddl.values}`
      + `\x1e${this.ts.values}\x1e${this.key.values}\x1e${head.texts.values}`
      + `\x1e${tags.texts.values}\x1e${routed.texts.values}\x1e${misc.texts.values}`;
  }
}
setPrototypeOf(Output.prototype, null);
