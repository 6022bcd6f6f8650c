// Some texts that narrow a list, applied together.
import { type FormEvent, type ReactNode, useState } from 'react';

export type FilterField<N extends string> = { name: N; label: string; placeholder: string; title?: string };

type Props<N extends string> = {
  label: string;
  fields: FilterField<N>[];
  values: Record<N, string | null>;
  onApply: (values: Record<N, string | null>) => void;
  children?: ReactNode;
};

export function FilterForm<N extends string>({ label, fields, values, onApply, children }: Props<N>) {
  const [texts, setTexts] = useState(values);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const applied = { ...texts };
    for (const { name } of fields) applied[name] = (texts[name] ?? '').trim() || null;
    onApply(applied);
  };
  return (
    <form className="filters toolbar" onSubmit={submit} aria-label={label}>
      {children}
      {fields.map(({ name, label: text, placeholder, title }) => (
        <label className="inline-field" key={name}>
          {text}
          <input
            className="mono"
            value={texts[name] ?? ''}
            placeholder={placeholder}
            title={title}
            spellCheck={false}
            autoComplete="off"
            onChange={(event) => setTexts({ ...texts, [name]: event.target.value })}
          />
        </label>
      ))}
      {fields.length > 0 && (
        <button className="button" type="submit">
          Apply
        </button>
      )}
    </form>
  );
}
