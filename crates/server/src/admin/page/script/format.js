// Numbers as text. An absent value is a dash.

/** Shows three significant digits, with a unit out of `steps`. */
function scaled(value, steps) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const [step, unit] = steps.find(([step]) => size >= step * 0.9995) ?? steps[steps.length - 1];
  const number = value / step;
  const digits = Math.abs(number) >= 99.95 ? 0 : Math.abs(number) >= 9.995 ? 1 : 2;
  const text = number.toFixed(digits);
  const short = text.includes(".") ? text.replace(/\.?0+$/, "") : text;
  return unit ? `${short}\u202f${unit}` : short;
}

const orDash = (format) => (value) => (value === null || value === undefined ? "–" : format(value));

export const count = (value) => scaled(value, [[1e9, "G"], [1e6, "M"], [1e3, "K"], [1, ""]]);
export const perSecond = orDash((value) => `${count(value)}/s`);
export const micros = (value) => scaled(value, [[1e6, "s"], [1e3, "ms"], [1, "µs"]]);
export const millis = orDash((value) => (value === 0 ? "0\u202fms" : micros(value * 1000)));
export const bytes = (value) =>
  scaled(value, [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]]);
/** Shows bytes in powers of ten, for bounds that are such powers. */
export const decimalBytes = (value) => scaled(value, [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]]);
/** Shows nanoseconds. */
export const nanos = (value) => scaled(value, [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]]);
export const bytesPerSecond = orDash((value) => `${bytes(value)}/s`);
export const percent = orDash((value) => `${scaled(value * 100, [[1, ""]])}\u202f%`);
export const times = orDash((value) => `${scaled(value, [[1, ""]])}×`);
export const whole = orDash((value) => value.toLocaleString("en"));

/** Shows a number of seconds by its two largest units. */
export function duration(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, length]) => seconds >= length);
  if (first === -1) return "0 s";
  const [[name, length], next] = [units[first], units[first + 1]];
  const text = `${Math.floor(seconds / length)} ${name}`;
  const rest = next ? Math.floor((seconds % length) / next[1]) : 0;
  return rest > 0 ? `${text} ${rest} ${next[0]}` : text;
}

const two = (number) => String(number).padStart(2, "0");

/** Shows the local time of day of a Unix time in seconds. */
export function clock(time, withSeconds = true) {
  const date = new Date(time * 1000);
  const text = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return withSeconds ? `${text}:${two(date.getSeconds())}` : text;
}

/** Shows day and time, the day only if it is not today. */
export function moment(time) {
  const date = new Date(time * 1000);
  return date.toDateString() === new Date().toDateString() ? clock(time) : dayAndTime(time);
}

export function dayAndTime(time) {
  const date = new Date(time * 1000);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(time)}`;
}
