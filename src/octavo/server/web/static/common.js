// What both pages use: elements, and requests that bring an API key where the server wants one.

export const $ = (id) => document.getElementById(id);

/** An element with properties, and children that are elements or text. Text never becomes markup. */
export function el(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("aria-") || key === "role") element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children);
  return element;
}

/** Storage that may be forbidden: then nothing is remembered. */
export const memory = {
  get(key, store = localStorage) { try { return store.getItem(key); } catch { return null; } },
  set(key, value, store = localStorage) { try { store.setItem(key, value); } catch { /* forbidden */ } },
};

const KEY = "octavo-key"; // forgotten when the tab is closed
let key = null;
try { key = memory.get(KEY, sessionStorage); } catch { /* forbidden */ }
let asking = null;

/** fetch with the key. Asks for one when the server refuses; throws an Error that says what the server said. */
export async function api(path, options = {}) {
  for (;;) {
    const used = key;
    const headers = { ...options.headers };
    if (used) headers.authorization = `Bearer ${used}`;
    const response = await fetch(path, { ...options, headers });
    if (response.ok) return response;
    if (response.status !== 401) throw new Error(await reason(response));
    if (used === key) {
      asking ??= askForKey(used !== null).finally(() => { asking = null; });
      key = await asking;
      try { memory.set(KEY, key, sessionStorage); } catch { /* forbidden */ }
    }
  }
}

async function reason(response) {
  let told = "";
  try { told = (await response.json()).error.message; } catch { /* not ours */ }
  return told || `the server answered with status ${response.status}`;
}

function askForKey(again) {
  const input = el("input", { type: "password", required: true, autocomplete: "off", "aria-label": "API key" });
  const form = el("form", {}, input, el("button", { className: "main" }, "Use it"));
  const told = again ? "The server did not take this key." : "This server wants an API key.";
  const dialog = el("dialog", { id: "key" }, el("p", {}, `${told} It stays in this tab.`), form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve, reject) => {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      dialog.remove();
      resolve(input.value.trim());
    });
    dialog.addEventListener("cancel", () => {
      dialog.remove();
      reject(new Error("an API key is needed; reload the page to give one"));
    });
  });
}
