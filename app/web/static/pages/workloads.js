// Programs' products: files of them, and what each took before and takes now.

import { card, figure, h, table } from "../parts/elements.js";
import { count, percent, problem, shapePage, time, when } from "../parts/format.js";
import { ask, at, query } from "../parts/service.js";

const link = (id, text) => h("a", { href: at(`ui/workloads/${id}`) }, text);

function upload() {
  const said = h("p", { class: "bad", role: "alert" });
  const send = async (event) => {
    event.preventDefault();
    const file = event.target.elements.file.files[0];
    try {
      const kept = await ask(`workloads?${query({ name: file.name })}`, { method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: file });
      location.assign(at(`ui/workloads/${kept.id}`));
    } catch (error) {
      said.textContent = error.message;
    }
  };
  return card("Read a program's products", { span: 12, text: "A trace of torch.profiler, a log of cublasLt, TunableOp's CSV, lists of AITER or hipBLASLt, an ONNX model, or lines of shapes." },
    h("form", { id: "workload-form", onsubmit: send }, h("label", {}, "file", h("input", { type: "file", name: "file", required: true })), h("button", { type: "submit" }, "Read it")), said);
}

async function list(main) {
  document.title = "Workloads · Tilewise";
  const { workloads } = await ask("workloads?limit=100");
  main.replaceChildren(
    h("div", { class: "hero" }, h("h1", {}, "Workloads", h("small", {}, "Which products a program runs, tuned by the time that they take of it."))),
    h("div", { class: "grid" }, card("Kept", { span: 12, id: "workloads" }, table(["Workload", "Read as", "Shapes#", "Calls#", "Kept since"], workloads.map((one) => [
      link(one.id, one.name || one.id.slice(0, 8)), one.source, count(one.shapes), count(one.calls), when(one.created_at)]), { empty: "None yet: give a file below." })), upload()));
}

const incumbent = (one) => typeof one === "string" ? one : one?.name ?? one?.kernel ?? "–";
const took = (call) => call ? time(call.median_ms ?? call.ms) : "–";

async function one(main, id) {
  const found = await ask(`workloads/${id}`);
  document.title = `${found.name || id} · Tilewise`;
  const seconds = h("input", { type: "number", min: 1, max: 3600, value: 60, "aria-label": "seconds" });
  const said = h("p", { class: "bad", role: "alert" });
  const tune = async (event) => {
    event.preventDefault();
    try {
      const { job } = await ask(`workloads/${id}/tune?${query({ tune: seconds.value })}`, { method: "POST" });
      location.assign(at(`ui/jobs/${job}`));
    } catch (error) {
      said.textContent = error.message;
    }
  };
  const { before, after } = found;
  main.replaceChildren(
    h("div", { class: "hero" }, h("h1", {}, found.name || id.slice(0, 8), h("small", {}, `${found.source} · ${found.summary}`)),
      figure(before ? time(before.ms) : "–", "before"), figure(after ? time(after.ms) : "–", "now", "win"), figure(percent(found.covered), "of the time at stake is measured"),
      h("div", { class: "actions" }, h("form", { onsubmit: tune }, seconds, h("button", { type: "submit" }, "Tune it")), found.job ? h("a", { href: at(`ui/jobs/${found.job}`) }, "its job") : null)), said,
    h("div", { class: "grid" }, card("Products", { span: 12, id: "products", text: "Those with most time at stake first." },
      table(["Problem", "Calls#", "At stake#", "By", "Before#", "Now#", "Why not"], found.products.map((each) => [
        h("a", { href: at(shapePage(each.problem, found.device)) }, problem(each.problem)), count(each.count), time(each.stake_ms), incumbent(each.incumbent), took(each.before), took(each.after), each.reason ?? ""]))),
      found.skipped.length ? card("Left out", { span: 12 }, table(["What", "Why", "Calls#"], found.skipped.map((each) => [each.what, each.reason, count(each.count)]))) : []));
}

export const show = (main, [id]) => id ? one(main, id) : list(main);
