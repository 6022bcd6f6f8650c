// A live line chart over time, with the same figures as a table for those who can't see it.
import { type ReactNode, useEffect, useRef, useState } from 'react';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { Panel } from './panel';
import { Scroll } from './scroll';
import { useColours } from './theme';

export type Series = { label: string; colour: '--series-1' | '--series-2' | '--series-3'; values: (number | null)[] };

type Props = { title: string; times: number[]; series: Series[]; format: (value: number) => string };

const chartHeight = 160;
/** Before this many seconds have passed the axis already spans them, so that the first samples don't jump. */
const spanMinSeconds = 60;
const tableRowsMax = 12;

/** Distances of the value axis's lines. */
const decimalSteps = Array.from({ length: 10 }, (_, power) => [1, 2, 5].map((step) => step * 10 ** power)).flat();

export function Chart(props: Props) {
  const { title, series } = props;
  const [asTable, setAsTable] = useState(false);
  const side: ReactNode = (
    <>
      {series.map(({ label, colour }) => (
        <span className="legend" key={label}>
          <i style={{ color: `var(${colour})` }} />
          {label}
        </span>
      ))}
      <label className="inline-field">
        <input type="checkbox" checked={asTable} onChange={(event) => setAsTable(event.target.checked)} />
        Table
      </label>
    </>
  );
  return (
    <Panel title={title} side={side}>
      {props.times.length === 0 && <p className="chart loading">Waiting for the first measurements…</p>}
      {props.times.length > 0 && (asTable ? <ChartTable {...props} /> : <Plot {...props} />)}
    </Panel>
  );
}

function Plot({ title, times, series, format }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(null);
  const colours = useColours();
  const shape = series.map(({ label, colour }) => `${label} ${colour}`).join();
  const data: uPlot.AlignedData = [times, ...series.map(({ values }) => values)];
  const latest = useRef({ data, series, format });
  latest.current = { data, series, format };

  // Made anew when the look changes, fed by the effect below.
  useEffect(() => {
    const element = place.current;
    if (element === null) return;
    const made = new uPlot(optionsFor(element, latest.current), latest.current.data, element);
    plot.current = made;
    const resized = new ResizeObserver(() => made.setSize({ width: innerWidthOf(element), height: chartHeight }));
    resized.observe(element);
    return () => {
      resized.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [colours, shape]);

  useEffect(() => plot.current?.setData(data));

  return <div className="chart" ref={place} role="img" aria-label={`${title}: ${latestText(series, format)}`} />;
}

function ChartTable({ title, times, series, format }: Props) {
  const rows = times.map((time, position) => ({ time, cells: series.map(({ values }) => values[position] ?? null) }));
  return (
    <div className="chart-table">
      <Scroll label={`${title}, the newest figures`}>
        <table>
          <thead>
            <tr>
              <th scope="col">Time</th>
              {series.map(({ label }) => (
                <th scope="col" className="number" key={label}>
                  {label}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows
              .slice(-tableRowsMax)
              .reverse()
              .map(({ time, cells }) => (
                <tr key={time}>
                  <td>{clock(time)}</td>
                  {series.map(({ label }, position) => (
                    <td className="number" key={label}>
                      {shown(cells[position] ?? null, format)}
                    </td>
                  ))}
                </tr>
              ))}
          </tbody>
        </table>
      </Scroll>
    </div>
  );
}

type Look = { series: Series[]; format: Props['format'] };

function optionsFor(element: HTMLElement, { series, format }: Look): uPlot.Options {
  const muted = colourOf(element, '--muted');
  const line = colourOf(element, '--line');
  const axis = { stroke: muted, font: '11px Inter, system-ui, sans-serif', ticks: { show: false } };
  return {
    width: innerWidthOf(element),
    height: chartHeight,
    legend: { show: false },
    cursor: { show: false },
    scales: {
      x: { range: (_, min, max) => [Math.min(min ?? 0, (max ?? 0) - spanMinSeconds), max ?? 0] },
      y: { range: (_, __, max) => [0, Math.max(max ?? 0, 1) * 1.15] },
    },
    axes: [
      { ...axis, grid: { show: false }, size: 24, gap: 4, space: 70, values: (_, splits) => splits.map(clock) },
      {
        ...axis,
        grid: { stroke: line, width: 1 },
        size: 66,
        space: 34,
        incrs: decimalSteps,
        values: (_, splits) => splits.map((split) => format(split)),
      },
    ],
    series: [
      {},
      ...series.map(({ label, colour }, position) => ({
        label,
        stroke: colourOf(element, colour),
        // The first series is the body, the others are lines over it.
        ...(position === 0 ? { fill: faded(colourOf(element, colour)) } : {}),
        width: 1.6,
        points: { show: false },
      })),
    ],
  };
}

/** What a custom property paints as here and now; reading the property itself would return its unresolved text. */
function colourOf(element: HTMLElement, name: string): string {
  const probe = document.createElement('i');
  probe.style.color = `var(${name})`;
  element.append(probe);
  const { color } = window.getComputedStyle(probe);
  probe.remove();
  return color;
}

function faded(colour: string): string {
  return colour.replace(/^rgb\((.*)\)$/, 'rgba($1, 0.12)');
}

function innerWidthOf(element: HTMLElement): number {
  return Math.max(element.clientWidth - 8, 80);
}

function latestText(series: Series[], format: Props['format']): string {
  return series.map(({ label, values }) => `${label} ${shown(values.at(-1) ?? null, format)}`).join(', ');
}

function shown(value: number | null, format: Props['format']): string {
  return value === null ? '–' : format(value);
}

function clock(seconds: number): string {
  return new Date(seconds * 1000).toTimeString().slice(0, 8);
}
