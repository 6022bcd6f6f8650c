import { useId } from 'react';
import type { ParameterInfo, TypeInfo } from '../generated/types.gen';
import { isTyped } from '../values/encode';
import { typeText } from '../values/type-text';

type Props = {
  parameter: ParameterInfo;
  text: string;
  complaint: string | undefined;
  onChange: (text: string) => void;
};

/** The control that fits a parameter's type. An option left empty is left out. */
export function ArgumentField({ parameter, text, complaint, onChange }: Props) {
  const id = useId();
  const { name, type } = parameter;
  const described = { id, 'aria-invalid': complaint !== undefined, 'aria-describedby': `${id}-complaint` };
  return (
    <div className="field">
      <label className="label" htmlFor={id}>
        {name}
        <span className="mono">{typeText(type)}</span>
      </label>
      <Control type={type} text={text} described={described} onChange={onChange} />
      <span className="complaint" id={`${id}-complaint`} hidden={complaint === undefined}>
        {complaint === undefined ? '' : `Expected: ${complaint}`}
      </span>
    </div>
  );
}

type ControlProps = {
  type: TypeInfo;
  text: string;
  described: { id: string; 'aria-invalid': boolean; 'aria-describedby': string };
  onChange: (text: string) => void;
};

function Control({ type, text, described, onChange }: ControlProps) {
  const optional = type.kind === 'option';
  const inner = type.kind === 'option' ? type.item : type;
  if (isTyped(inner)) {
    return (
      <input
        {...described}
        className={inner.kind === 'text' ? undefined : 'mono'}
        value={text}
        inputMode={inputModeOf(inner)}
        placeholder={optional ? 'left out' : placeholderOf(inner)}
        spellCheck={false}
        autoComplete="off"
        onChange={(event) => onChange(event.target.value)}
      />
    );
  }
  switch (inner.kind) {
    case 'bool':
    case 'enum': {
      const variants = inner.kind === 'enum' ? inner.variants : ['false', 'true'];
      return (
        <select {...described} value={text} onChange={(event) => onChange(event.target.value)}>
          {optional && <option value="">left out</option>}
          {variants.map((variant) => (
            <option key={variant}>{variant}</option>
          ))}
        </select>
      );
    }
    case 'list':
    case 'struct':
    case 'option':
      return (
        <textarea
          {...described}
          rows={3}
          value={text}
          spellCheck={false}
          onChange={(event) => onChange(event.target.value)}
        />
      );
  }
}

function inputModeOf(type: TypeInfo): 'numeric' | 'decimal' | 'text' {
  if (type.kind === 'f64' || type.kind === 'decimal') return 'decimal';
  return /^u\d+$/.test(type.kind) ? 'numeric' : 'text';
}

function placeholderOf(type: TypeInfo): string {
  if (type.kind === 'timestamp') return '2026-01-31T12:00:00Z';
  if (type.kind === 'bytes') return 'base64';
  return '';
}
