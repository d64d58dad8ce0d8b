"use strict";
// The page asks for the run's state every second. All texts from the run are set as text, never as
// HTML: names and reasons come from nodes, which nobody trusts.
const byId = (id) => document.getElementById(id);
const NONE = "–";
const ROW = 34; // px, the height of a row of the table with its line
const SPARE = 12; // rows that are drawn above and below the visible ones
const SVG = "http://www.w3.org/2000/svg";

function make(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}
function draw(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
function put(id, text) { // an element that does not change is not announced again
  const element = byId(id), shown = text || "";
  if (element.textContent !== shown) element.textContent = shown;
  element.hidden = !shown;
}

// Numbers as text
const known = (value) => value !== null && value !== undefined;
const digits = (value, count) => Number(value.toPrecision(count)).toString();
function count(value) { return known(value) ? Math.round(value).toLocaleString("en") : NONE; }
function figure(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  return size >= 1e6 || (size > 0 && size < 1e-3) ? value.toExponential(2) : digits(value, 4);
}
function percent(value) { return known(value) ? `${(100 * value).toFixed(2)} %` : NONE; }
function bytes(value) {
  if (!known(value)) return NONE;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (Math.abs(value) < 999.5) return `${unit === "B" ? Math.round(value) : digits(value, 3)} ${unit}`;
    value /= 1000;
  }
  return `${digits(value, 4)} TB`;
}
function duration(value) {
  if (!known(value)) return NONE;
  if (value < 60) return `${digits(value, value < 10 ? 2 : 3)} s`;
  const minutes = Math.floor(Math.round(value) / 60), two = (n) => String(n).padStart(2, "0");
  if (minutes < 60) return `${minutes} min ${two(Math.round(value) % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${two(minutes % 60)} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}
const metricText = (metric) => (metric.share ? percent : figure);

// The head of the page
function showHead(run) {
  put("name", run.name);
  document.title = run.rounds ? `${count(run.round)}/${count(run.rounds)} ${run.name}` : run.name;
  const pill = byId("state");
  if (pill.textContent !== run.state) pill.textContent = run.state;
  pill.className = `pill ${run.state}`;
  document.body.className = run.state;
  put("reason", run.reason);
  put("overrides", run.overrides);
  byId("folder").textContent = run.folder;
  const share = run.rounds ? Math.min(run.round / run.rounds, 1) : 0;
  byId("done").style.width = `${100 * share}%`;
  const bar = byId("bar");
  bar.setAttribute("aria-valuemax", run.rounds || 1);
  bar.setAttribute("aria-valuenow", run.round || 0);
  const unit = run.unit;
  byId("rounds").textContent = known(run.round) && known(run.rounds)
    ? `${unit} ${count(run.round)} of ${count(run.rounds)}` : "no round yet";
  const rest = [];
  if (known(run.left)) rest.push(`about ${duration(run.left)} left`);
  if (run.state === "silent" || (run.state === "running" && run.silence > 10)) {
    rest.push(`last news ${duration(run.silence)} ago`);
  }
  byId("left").textContent = rest.join(", ");
}

function showFigures(run) {
  const metric = run.metric, text = metricText(metric);
  const found = [[metric.name, text(metric.value), known(metric.best) ? `best ${text(metric.best)}` : ""]];
  found.push(["training loss", figure(run.train_loss),
    known(run.loss) && metric.name !== "loss" ? `test loss ${figure(run.loss)}` : ""]);
  for (const [way, name] of [["uplink", "sent up"], ["downlink", "sent down"]]) {
    const sent = run[way], more = [];
    if (known(sent.ratio)) more.push(`ratio ${sent.ratio.toFixed(2)}`);
    if (sent.indices > 0) more.push(`indices ${bytes(sent.indices)}`);
    found.push([name, bytes(sent.bytes), more.join("; ")]);
  }
  found.push(["time", duration(run.seconds),
    known(run.virtual_seconds) ? `${duration(run.virtual_seconds)} on virtual links` : ""]);
  const each = run.speeds.rounds, running = run.state === "running";
  const pace = !known(each) ? NONE : each >= 1 || each === 0
    ? `${digits(each, 3)} /s` : duration(1 / each);
  found.push([!known(each) || each >= 1 || each === 0 ? `${run.unit}s` : `time of a ${run.unit}`, pace,
    known(run.speeds.bytes) ? `${bytes(run.speeds.bytes)} per second` : ""]);
  found.push(["updates used", count(run.updates),
    known(run.failures) ? `${count(run.failures)} failed` : ""]);
  if (known(run.staleness)) found.push(["mean staleness", figure(run.staleness), "updates"]);
  const list = byId("figures");
  while (list.children.length > found.length) list.lastChild.remove();
  found.forEach(([name, value, more], place) => {
    let box = list.children[place];
    if (!box) {
      box = make("div");
      box.append(make("dt"), make("dd", "value"), make("dd", "more"));
      list.append(box);
    }
    [name, value, more].forEach((part, at) => {
      if (box.children[at].textContent !== part) box.children[at].textContent = part;
    });
  });
  return running;
}

// Curves
const CURVES = ["metric", "train_loss", "staleness", "density"];
const charts = {}; // by the name of the curve
let curves = {}, latest = null;

function steps(low, high, wanted) { // round values between two bounds
  const rough = (high - low) / wanted || Math.abs(high) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + 1e-9 * step; at++) found.push(at * step || 0);
  return found;
}
class Chart {
  constructor(name) {
    this.name = name;
    this.place = null; // of the point that the reader has chosen
    this.frame = make("figure");
    this.caption = make("strong");
    this.at = make("span", "at");
    this.at.setAttribute("aria-live", "polite");
    const head = make("figcaption");
    head.append(this.caption, this.at);
    this.svg = draw("svg", { role: "img", tabindex: 0 });
    this.frame.append(head, this.svg);
    byId("curves").append(this.frame);
    new ResizeObserver(() => this.show()).observe(this.svg);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => { this.place = null; this.show(); });
    this.svg.addEventListener("blur", () => { this.place = null; this.show(); });
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }
  points() {
    const axis = latest.axes.indexOf(byId("axis").value);
    return (curves[this.name] || []).map(([axes, y]) => [axes[axis], y]).filter(([x]) => known(x));
  }
  text(value) { return this.name === "metric" ? metricText(latest.metric)(value) : this.name === "density" ? percent(value) : figure(value); }
  tick(value) {
    const share = this.name === "density" || (this.name === "metric" && latest.metric.share);
    return share ? `${digits(100 * value, 4)} %` : figure(value);
  }
  along(value) {
    const axis = byId("axis").value;
    return axis === "round" ? count(value) : axis === "uplink" ? bytes(value) : duration(value);
  }
  title() {
    return { metric: latest.metric.name, train_loss: "training loss", staleness: "staleness",
      density: "share of entries sent" }[this.name];
  }
  show() {
    if (!latest) return;
    const points = this.points();
    const useless = this.name === "density" && points.every(([, y]) => y > 0.999);
    this.frame.hidden = !points.length || useless;
    if (this.frame.hidden) return;
    this.caption.textContent = this.title();
    const width = this.svg.clientWidth, height = this.svg.clientHeight;
    if (!width) return;
    const xs = points.map(([x]) => x), ys = points.map(([, y]) => y);
    let low = Math.min(...ys), high = Math.max(...ys);
    if (low === high) { const half = Math.abs(low) / 10 || 0.5; low -= half; high += half; }
    const first = Math.min(...xs), last = Math.max(...xs, first + 1e-9);
    const ticks = steps(low, high, 4);
    low = Math.min(low, ticks[0] ?? low); high = Math.max(high, ticks.at(-1) ?? high);
    const left = 10 + Math.max(...ticks.map((each) => 6.6 * this.tick(each).length), 20);
    const box = { left, right: width - 14, top: 10, bottom: height - 24 };
    const toX = (x) => box.left + ((x - first) / (last - first)) * (box.right - box.left);
    const toY = (y) => box.bottom - ((y - low) / (high - low)) * (box.bottom - box.top);
    const parts = [];
    for (const each of ticks) {
      parts.push(draw("line", { class: "grid", x1: box.left, x2: box.right, y1: toY(each), y2: toY(each) }));
      parts.push(draw("text", { x: box.left - 7, y: toY(each) + 4, "text-anchor": "end" }, this.tick(each)));
    }
    const across = steps(first, last, Math.max(2, Math.floor((box.right - box.left) / 75)))
      .filter((each) => byId("axis").value !== "round" || Number.isInteger(each));
    for (const each of across) {
      parts.push(draw("text", { x: Math.min(toX(each), box.right - 14), y: height - 6, "text-anchor": "middle" }, this.along(each)));
    }
    const path = points.map(([x, y], at) => `${at ? "L" : "M"}${toX(x).toFixed(1)} ${toY(y).toFixed(1)}`);
    parts.push(draw("path", { class: "curve", d: path.join("") }));
    const chosen = this.place === null ? points.length - 1 : Math.min(this.place, points.length - 1);
    const [x, y] = points[chosen];
    if (this.place !== null) parts.push(draw("line", { class: "here", x1: toX(x), x2: toX(x), y1: box.top, y2: box.bottom }));
    parts.push(draw("circle", { class: "dot", cx: toX(x), cy: toY(y), r: 3.5 }));
    this.svg.replaceChildren(...parts);
    const said = `${this.text(y)} at ${byId("axis").value === "round" ? `${latest.unit} ` : ""}${this.along(x)}`;
    if (this.at.textContent !== said) this.at.textContent = said;
    this.at.setAttribute("aria-live", this.place === null ? "off" : "polite");
    this.svg.setAttribute("aria-label", `${this.title()}: from ${this.text(points[0][1])} to ` +
      `${this.text(points.at(-1)[1])}; the arrow keys read single points`);
    this.scale = { toX, xs };
  }
  point(event) {
    if (!this.scale) return;
    const where = event.clientX - this.svg.getBoundingClientRect().left;
    let best = 0;
    this.scale.xs.forEach((x, at) => {
      if (Math.abs(this.scale.toX(x) - where) < Math.abs(this.scale.toX(this.scale.xs[best]) - where)) best = at;
    });
    this.place = best;
    this.show();
  }
  key(event) {
    const end = this.points().length - 1, now = this.place ?? end;
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: end,
      PageUp: now - 10, PageDown: now + 10 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.place = Math.max(0, Math.min(to, end));
    this.show();
  }
}
function showCurves() {
  byId("axis").options[0].textContent = `${latest.unit}s`;
  for (const option of byId("axis").options) {
    const axis = latest.axes.indexOf(option.value);
    const has = Object.values(curves).some((points) => points.some(([axes]) => known(axes[axis])));
    option.hidden = option.disabled = option.value !== "round" && !has;
  }
  let any = false;
  for (const name of CURVES) {
    if (!(curves[name] || []).length && !charts[name]) continue;
    charts[name] ||= new Chart(name);
    charts[name].show();
    any ||= !charts[name].frame.hidden;
  }
  byId("no-curves").hidden = any;
}

// Nodes
const STATES = { offline: 0, slow: 1, waiting: 2, unanswered: 2, ready: 3 };
const COLUMNS = [
  ["node", "node"], ["state", "state"], ["lag", "lag", duration], ["mean_lag", "mean lag", duration],
  ["messages", "messages", count], ["replies", "replies", count], ["failures", "failures", count],
  ["uplink_bytes", "sent up", bytes], ["downlink_bytes", "sent down", bytes],
  ["samples", "samples", count], ["train_loss", "training loss", figure], ["metric", "metric", null],
  ["staleness", "staleness", figure], ["density", "density", percent], ["reason", "last failure"],
];
const DOWN = new Set(["lag", "mean_lag", "failures", "uplink_bytes", "downlink_bytes", "staleness"]);
const FILTERS = { all: () => true, online: (s) => s !== "offline", waiting: (s) => s === "waiting",
  unanswered: (s) => s === "unanswered", slow: (s) => s === "slow",
  failed: (s, node) => node.failures > 0, offline: (s) => s === "offline" };
let nodes = [], content = null, order = [], sort = { key: "node", down: false };
let filter = "all", chosen = null, columns = [];

function takeNodes() {
  nodes = [];
  if (!content) return;
  const found = content.columns;
  for (let at = 0; at < found.node.length; at++) {
    const node = {};
    for (const key of Object.keys(found)) node[key] = found[key][at];
    nodes.push(node);
  }
}
function stateOf(node) { // a run that has ended waits for nothing
  const live = latest.state === "running" || latest.state === "silent";
  return !live && (node.state === "waiting" || (node.state === "slow" && node.waiting)) ? "unanswered" : node.state;
}
function cellText(node, [key, , text]) {
  if (key === "state") return stateOf(node);
  if (key === "metric") return metricText(latest.metric)(node.metric);
  return text ? text(node[key]) : known(node[key]) ? node[key] : "";
}
function arrange() {
  const wanted = byId("search").value.trim().toLowerCase(), { key, down } = sort;
  const value = (node) => (key === "state" ? STATES[stateOf(node)]
    : key === "node" ? node.partition ?? node.node : node[key]);
  order = nodes.filter((node) => FILTERS[filter](stateOf(node), node) &&
    (!wanted || (wanted.length > 5 && node.node.startsWith(wanted)) || String(node.partition) === wanted ||
      (node.reason || "").toLowerCase().includes(wanted)));
  order.sort((a, b) => {
    const x = value(a), y = value(b);
    if (known(x) !== known(y)) return known(x) ? -1 : 1; // nodes without a value come last
    const less = !known(x) ? 0 : typeof x === "number" && typeof y === "number"
      ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return (down ? -less : less) || (a.partition ?? 0) - (b.partition ?? 0);
  });
}
function showHeads() {
  const used = COLUMNS.filter(([key]) => ["node", "state"].includes(key) || nodes.some((n) => known(n[key])));
  const row = byId("heads");
  if (used.length !== columns.length || !row.children.length) {
    columns = used;
    row.replaceChildren(...columns.map(([key, name]) => {
      const head = make("th", ["state", "reason"].includes(key) ? "left" : ""), button = make("button");
      head.scope = "col";
      head.dataset.key = key;
      button.type = "button";
      button.dataset.name = key === "metric" ? (content.metric || name) : name;
      button.addEventListener("click", () => {
        sort = { key, down: sort.key === key ? !sort.down : DOWN.has(key) };
        showNodes();
      });
      head.append(button);
      return head;
    }));
  }
  for (const head of row.children) {
    const here = head.dataset.key === sort.key, button = head.firstChild;
    if (here) head.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
    const text = button.dataset.name + (here ? (sort.down ? " ↓" : " ↑") : "");
    if (button.textContent !== text) button.textContent = text;
  }
}
function showFilters() {
  const group = byId("filters");
  for (const [name, fits] of Object.entries(FILTERS)) {
    let button = group.querySelector(`[data-filter=${name}]`);
    if (!button) {
      button = make("button");
      button.type = "button";
      button.dataset.filter = name;
      button.addEventListener("click", () => {
        filter = filter === name ? "all" : name;
        byId("scroll").scrollTop = 0;
        showNodes();
      });
      group.append(button);
    }
    const number = nodes.filter((node) => fits(stateOf(node), node)).length;
    button.textContent = `${name} ${count(number)}`;
    button.setAttribute("aria-pressed", String(filter === name));
    button.hidden = !number && filter !== name && !["all", "online"].includes(name);
  }
}
function rowOf(node, place) {
  const row = make("tr", node.node === chosen ? "chosen" : "");
  row.setAttribute("aria-rowindex", place + 2);
  for (const column of columns) {
    const [key] = column, text = cellText(node, column), cell = make("td");
    if (key === "node") {
      const button = make("button", "", known(node.partition) ? `${count(node.partition)}` : text);
      button.type = "button";
      button.dataset.node = node.node;
      button.setAttribute("aria-label", `details of node ${button.textContent}`);
      cell.append(button);
    } else {
      cell.textContent = text;
      if (key === "state") cell.className = `left state-${text}`;
      if (key === "reason") cell.className = "reason-cell";
      if (key === "failures" && node.failures > 0) cell.className = "bad";
    }
    row.append(cell);
  }
  return row;
}
function space(rows) {
  const row = make("tr"), cell = make("td", "space");
  row.setAttribute("aria-hidden", "true");
  cell.colSpan = columns.length;
  cell.style.height = `${rows * ROW}px`;
  row.append(cell);
  return row;
}
function showRows() { // only the visible rows are in the page: there may be 2,000
  const view = byId("scroll"), body = byId("rows"), active = document.activeElement;
  const focused = body.contains(active) ? active.dataset.node : null;
  const most = Math.ceil(view.clientHeight / ROW);
  let from = Math.max(0, Math.floor(view.scrollTop / ROW) - SPARE);
  from = Math.min(from, Math.max(0, order.length - most - SPARE));
  const to = Math.min(order.length, from + most + 2 * SPARE);
  const rows = [];
  if (from) rows.push(space(from));
  for (let at = from; at < to; at++) rows.push(rowOf(order[at], at));
  if (to < order.length) rows.push(space(order.length - to));
  body.replaceChildren(...rows);
  byId("table").setAttribute("aria-rowcount", order.length + 1);
  if (focused !== null) body.querySelector(`[data-node="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}
function showDetail() {
  const node = nodes.find((each) => each.node === chosen);
  byId("detail").hidden = !node;
  if (!node) return;
  put("detail-title", `node ${known(node.partition) ? count(node.partition) : ""} (Flower's id ${node.node})`);
  put("detail-reason", node.reason ? `last failure: ${node.reason}` : "");
  const values = [["state", stateOf(node)]];
  for (const column of COLUMNS) {
    const [key, name] = column;
    if (["node", "state", "reason"].includes(key) || !known(node[key])) continue;
    values.push([key === "metric" ? (content.metric || name) : name, cellText(node, column)]);
  }
  if (known(content.seconds) && known(node.heard)) values.push(["last reply", `${duration(Math.max(content.seconds - node.heard, 0))} before now`]);
  byId("detail-values").replaceChildren(...values.map(([name, value]) => {
    const box = make("div");
    box.append(make("dt", "", name), make("dd", "", value));
    return box;
  }));
  const labels = byId("detail-labels");
  labels.replaceChildren();
  if (!node.labels) return;
  const most = Math.max(...node.labels, 1), bars = make("div", "labels");
  node.labels.forEach((number) => {
    const bar = make("div");
    bar.style.height = `${(100 * number) / most}%`;
    bars.append(bar);
  });
  bars.setAttribute("role", "img");
  bars.setAttribute("aria-label", `samples of each class: ${node.labels.slice(0, 100).join(", ")}`);
  labels.append(bars, make("p", "quiet", `samples of each of ${node.labels.length} classes, at most ${count(most)}`));
}
function showNodes() {
  byId("nodes-section").hidden = !nodes.length;
  if (!nodes.length) return;
  arrange();
  showHeads();
  showFilters();
  showRows();
  showDetail();
  const beyond = content.others ? `; ${count(content.others)} more nodes are not listed` : "";
  byId("shown").textContent = `${count(order.length)} of ${count(nodes.length)} nodes${beyond}`;
}

// The state of the run, every second
const have = { history: "", nodes: "" };
let failures = 0;
async function ask() {
  const response = await fetch(`state?${new URLSearchParams(have)}`, { cache: "no-store" });
  if (!response.ok) throw new Error(`status ${response.status}`);
  const run = await response.json();
  const before = latest && latest.state;
  latest = run;
  Object.assign(have, run.versions);
  showHead(run);
  showFigures(run);
  if (run.curves) curves = run.curves;
  if (run.curves || before !== run.state) showCurves();
  if (run.nodes !== undefined) { content = run.nodes; takeNodes(); }
  if (run.nodes !== undefined || before !== run.state) showNodes();
}
async function follow() {
  let pause = 1000;
  if (!document.hidden) {
    try {
      await ask();
      failures = 0;
      if (!["running", "waiting"].includes(latest.state)) pause = 3000;
    } catch {
      failures += 1;
    }
    byId("lost").hidden = failures < 2;
  }
  setTimeout(follow, pause);
}
byId("axis").addEventListener("change", showCurves);
byId("search").addEventListener("input", () => { byId("scroll").scrollTop = 0; showNodes(); });
byId("scroll").addEventListener("scroll", () => requestAnimationFrame(showRows));
byId("rows").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  chosen = chosen === button.dataset.node ? null : button.dataset.node;
  showRows();
  showDetail();
});
byId("close").addEventListener("click", () => {
  const node = chosen;
  chosen = null;
  showRows();
  showDetail();
  byId("rows").querySelector(`[data-node="${CSS.escape(node)}"]`)?.focus();
});
follow();
