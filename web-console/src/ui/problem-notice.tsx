import { explain } from '../api/problem';
import { Facts } from './facts';

/** Any failure, as the server's own words and what to do about it. */
export function ProblemNotice({ error }: { error: unknown }) {
  const { title, detail, hint, facts, lines } = explain(error);
  return (
    <div className="notice" role="alert">
      <strong>{title}</strong>
      {detail !== '' && detail !== title && <p>{detail}</p>}
      {facts.length > 0 && <Facts inline facts={facts} />}
      {lines.length > 0 && (
        <ul className="lines mono">
          {lines.map((line, position) => (
            <li key={position}>{line}</li>
          ))}
        </ul>
      )}
      {hint !== null && <p className="muted">{hint}</p>}
    </div>
  );
}
