// Figures for people: three digits and a unit, as planner/figures.py writes them.

export const figure = (value, digits = 3) => {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return value === 0 ? "0" : value.toLocaleString("en", { maximumSignificantDigits: digits, useGrouping: false });
};

export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value < 0.9995) return `${figure(value * 1e3)} ms`;
  return value < 100 ? `${figure(value)} s` : value < 7200 ? `${Math.round(value / 60)} min` : `${Math.round(value / 3600)} h`;
}

export function bytes(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  let unit = 0;
  while (value >= 999.5 && unit < 4) { value /= 1000; unit += 1; }
  return `${figure(value)} ${["B", "kB", "MB", "GB", "TB"][unit]}`;
}

export const shape = extents => extents === null || extents === undefined ? "?"
  : extents.length ? extents.map(n => n < 0 ? "?" : n).join("×") : "scalar";

export const clock = at => new Date(at * 1e3).toLocaleTimeString("en-GB");

export const ago = at => `${seconds(Math.max(Math.round(Date.now() / 1e3 - at), 0)).replace(/^0 ms$/, "a moment")} ago`;
