// Asks for a bearer token when the server wants one.
import { useQueryClient } from '@tanstack/react-query';
import { type FormEvent, useEffect, useRef, useState } from 'react';
import { askForToken, setToken, useToken } from '../api/token';
import { restartLive } from '../live/live';
import { KeyIcon } from '../ui/icons';

export function TokenDialog() {
  const { token, wanted } = useToken();
  const dialog = useRef<HTMLDialogElement>(null);
  const [typed, setTyped] = useState('');
  const use = useNewToken();

  useEffect(() => {
    if (wanted) dialog.current?.showModal();
    else dialog.current?.close();
  }, [wanted]);

  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (typed.trim() === '') return;
    use(typed.trim());
    setTyped('');
  };
  // Escape must not leave a page behind that can't show anything.
  return (
    <dialog ref={dialog} aria-labelledby="token-title" onCancel={(event) => event.preventDefault()}>
      <form className="dialog-body" onSubmit={submit}>
        <h2 id="token-title">
          {token === null ? 'This server needs a token' : 'The server refused the token'}
        </h2>
        <p className="muted">
          Enter a bearer token of this server. The console keeps it in this tab only, until you close the tab.
        </p>
        <label className="field">
          <span className="label">Bearer token</span>
          <input
            className="mono"
            type="password"
            autoComplete="off"
            spellCheck={false}
            value={typed}
            onChange={(event) => setTyped(event.target.value)}
          />
        </label>
        <div className="dialog-actions">
          <button className="button primary" type="submit" disabled={typed.trim() === ''}>
            Use the token
          </button>
        </div>
      </form>
    </dialog>
  );
}

/** There while a token is in use, to change or forget it. */
export function TokenButton() {
  const { token } = useToken();
  const use = useNewToken();
  if (token === null) return null;
  const forget = () => {
    use(null);
    askForToken();
  };
  return (
    <button className="button plain icon" type="button" title="Forget the token" onClick={forget}>
      <KeyIcon />
      <span className="visually-hidden">Forget the token</span>
    </button>
  );
}

function useNewToken(): (token: string | null) => void {
  const queries = useQueryClient();
  return (token) => {
    setToken(token);
    restartLive();
    // What was read with the old token may not be shown under the new one.
    void queries.resetQueries();
  };
}
