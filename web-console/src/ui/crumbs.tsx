import { hrefOf, type Route } from '../route';

type Props = { to: Route; section: string; name: string };

/** The head of a page about one thing, with the way back to the list of its kind. */
export function Crumbs({ to, section, name }: Props) {
  return (
    <div className="crumbs">
      <a href={hrefOf(to)}>{section}</a>
      <span className="sep" aria-hidden="true">
        /
      </span>
      <h1>{name}</h1>
    </div>
  );
}
