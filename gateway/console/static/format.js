// Numbers as people read them.

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${value.toFixed(2)} ms`;
  if (value < 10) return `${value.toFixed(1)} ms`;
  if (value < 1000) return `${Math.round(value)} ms`;
  return seconds(value / 1000);
}

export function seconds(value) {
  if (value < 10) return `${value.toFixed(value < 1 ? 2 : 1)} s`;
  if (value < 100) return `${Math.round(value)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return `${Math.round(value / 3600)} h`;
}

export function count(value) {
  if (value < 10000) return String(Math.round(value));
  if (value < 1e6) return `${(value / 1000).toFixed(value < 1e5 ? 1 : 0)}k`;
  return `${(value / 1e6).toFixed(1)}M`;
}

export function rate(value) {
  return value < 10 && value !== Math.round(value) ? value.toFixed(1) : count(value);
}

export const percent = (share) => `${Math.round(share * 100)} %`;

export const calls = (number) => (number === 1 ? "1 call" : `${count(number)} calls`);
