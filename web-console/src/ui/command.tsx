import { useState } from 'react';
import { prefixOf } from '../api/client';
import { CheckIcon, CopyIcon } from './icons';

/** A shell command to copy. */
export function Command({ text }: { text: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <div className="command">
      <code>{text}</code>
      {/* The clipboard exists only where the page is trusted: https or this machine. */}
      {window.isSecureContext && (
        <button className="button plain icon" type="button" onClick={copy} title="Copy the command">
          {copied ? <CheckIcon /> : <CopyIcon />}
          <span className="visually-hidden">{copied ? 'Copied' : 'Copy the command'}</span>
        </button>
      )}
    </div>
  );
}

/** The address that commands should name: the one this page came from. */
export function serverUrl(): string {
  return window.location.origin + prefixOf(window.location.pathname);
}
