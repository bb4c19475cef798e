// The form that orders a tune, which an address may fill in; a job's page follows what it begins.

import { h } from "./elements.js";
import { at, send } from "./service.js";

const number = (name, value, max) => h("label", {}, name, h("input", { name, type: "number", min: 1, max, value, required: true }));
const select = (name, options, chosen, label = name) =>
  h("label", {}, label, h("select", { name }, options.map((each) => h("option", { selected: each === chosen }, each))));
const check = (name, label, checked) => h("label", { class: "check" }, h("input", { name, type: "checkbox", checked }), label);

/** The order that a form's fields are. */
function orderOf(form) {
  const given = Object.fromEntries(new FormData(form));
  const sizes = Object.fromEntries(["m", "n", "k", "batch"].map((name) => [name, Number(given[name])]));
  return {
    shapes: [sizes], dtype: given.dtype, precision: given.precision, trans_a: "trans_a" in given, trans_b: "trans_b" in given,
    device: given.device || null, budget: { seconds: Number(given.seconds) }, retune: true,
  };
}

export function orderForm(devices, { m = 256, n = 256, k = 256, batch = 1, dtype, precision, trans_a: a, trans_b: b } = {}) {
  const said = h("p", { class: "bad", role: "alert", id: "refused" });
  const begin = async (event) => {
    event.preventDefault();
    said.textContent = "";
    try {
      const job = await send("tune", orderOf(event.target));
      location.assign(at(`ui/jobs/${job.id}`));
    } catch (error) {
      said.textContent = error.message;
    }
  };
  return h("div", {}, h("form", { id: "tune-form", onsubmit: begin },
    number("m", m, 16384), number("n", n, 16384), number("k", k, 16384), number("batch", batch, 65535),
    select("dtype", ["float32", "float64", "float16", "bfloat16"], dtype, "type"), select("precision", ["strict", "tf32", "emulated"], precision),
    check("trans_a", "A is transposed", a), check("trans_b", "B is transposed", b), select("device", devices.map((each) => each.id)),
    number("seconds", 20, 600), h("button", { type: "submit" }, "Tune")), said);
}
