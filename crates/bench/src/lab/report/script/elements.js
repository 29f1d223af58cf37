// Part of the report's script: makes the page's elements.

/** Makes an element. Attributes that are null or false are left out; functions become listeners. */
function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const paragraphs = (texts) => (texts ?? []).map((text) => h("p", {}, text));

/** A list, or a paragraph if there is only one text. */
function listOf(texts) {
  return texts.length > 1 ? h("ul", {}, texts.map((text) => h("li", {}, text))) : paragraphs(texts);
}

/** A command with a button that copies it. */
function commandLine(command) {
  const text = Array.isArray(command) ? command.map(quoted).join(" ") : String(command);
  const copy = async (event) => {
    try {
      await navigator.clipboard.writeText(text);
      event.target.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(event.target.previousSibling);
    }
  };
  return h("span", { class: "command" }, h("code", {}, text),
    h("button", { type: "button", click: copy, "aria-label": `Copy: ${text}` }, "Copy"));
}

/** Quotes a word for a shell if it needs that. */
const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${String(word).replaceAll("'", `'\\''`)}'`);

/** The command that repeats an experiment. */
const repeatOf = (experiment) => experiment?.command || wholeCommand();

/** The command of the whole run. Its program may lie elsewhere on another machine, so only its name is shown. */
const wholeCommand = () => (results.command ?? []).map((word, at) => (at === 0 ? word.split("/").at(-1) : word));

const headCell = (text) => h("th", { scope: "col" }, text);
const numberHead = (text) => h("th", { class: "n", scope: "col" }, text);
const rowHead = (...content) => h("th", { scope: "row" }, ...content);
const numberCell = (text, attributes = {}) => h("td", { class: "n", ...attributes }, text);
const noNumber = () => h("td", { class: "n soft" }, "–");

/** A head row: `words` and `more` head columns of text, `numbers` head columns of figures. */
const headRow = (words, numbers = [], more = []) =>
  h("tr", {}, words.map(headCell), numbers.map(numberHead), more.map(headCell));

/** A table in a frame that scrolls by itself if the table is wide. */
function framed(label, ...parts) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, h("table", {}, ...parts));
}
