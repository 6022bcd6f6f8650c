import { useId } from 'react';

type Props<T extends string> = {
  label: string;
  value: T;
  options: { value: T; text: string }[];
  onChange: (value: T) => void;
};

/** One of a few, all in sight. */
export function Switch<T extends string>({ label, value, options, onChange }: Props<T>) {
  const group = useId();
  return (
    <div className="switch" role="radiogroup" aria-label={label}>
      {options.map((option) => (
        <label key={option.value}>
          <input type="radio" name={group} checked={option.value === value} onChange={() => onChange(option.value)} />
          {option.text}
        </label>
      ))}
    </div>
  );
}
