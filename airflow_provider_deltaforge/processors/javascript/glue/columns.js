// ---- One column of what goes back: values, and the rows they are for ----

// The numbers below `count`, as a list begins that has all of them.
function ordinals(count) {
  let list = "";
  for (let i = 0; i < count; i++) list += i === 0 ? "0" : `,${i}`;
  return list;
}

class Texts {
  constructor() {
    this.count = 0;
    this.dense = true;
    this.rows = "";
    this.values = "";
  }
  add(row, value) {
    if (this.dense && row !== this.count) {
      this.dense = false;
      this.rows = ordinals(this.count);
    }
    if (!this.dense) this.rows += this.count === 0 ? row : `,${row}`;
    this.values += this.count++ === 0 ? value : `\n${value}`;
  }
  where(total) {
    if (this.dense) return this.count === total ? "null" : `[${ordinals(this.count)}]`;
    return `[${this.rows}]`;
  }
}

class Codes {
  constructor() {
    this.texts = new Texts();
    this.numbers = new MapOf();
    this.short = new MapOf();
    this.distinct = "";
  }
  code(value) {
    let code = mapGet(this.numbers, value);
    if (code === undefined) {
      code = mapSize(this.numbers);
      this.distinct += code === 0 ? value : `,${value}`;
      mapSet(this.numbers, value, code);
    }
    return code;
  }
  add(row, value) {
    this.texts.add(row, this.code(value));
  }
  // A topic alone needs not be written to be known.
  addRouting(row, routed) {
    if (routed === null || routed.headers !== null || routed.raw_payload !== null) {
      this.add(row, routingText(routed));
      return;
    }
    let code = mapGet(this.short, routed.topic);
    if (code === undefined) {
      code = this.code(routingText(routed));
      mapSet(this.short, routed.topic, code);
    }
    this.texts.add(row, code);
  }
}
for (const type of [Texts, Codes]) setPrototypeOf(type.prototype, null);
