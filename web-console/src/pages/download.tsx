// The rows that a page's filters let through, as a file.
import { useMutation } from '@tanstack/react-query';
import { useEffect, useRef } from 'react';
import { downloadMax, type Form, forms, readRows, save } from '../api/download';
import type { RangeWanted } from '../api/queries';
import { formatBytes } from '../format';
import { ProblemNotice } from '../ui/problem-notice';

const choices: Form[] = ['csv', 'ndjson'];

export function Download({ wanted }: { wanted: RangeWanted & { reverse: string | null } }) {
  const leaving = useRef(new AbortController());
  useEffect(() => {
    const controller = new AbortController();
    leaving.current = controller;
    return () => controller.abort();
  }, []);
  const download = useMutation({
    mutationFn: async (form: Form) => {
      const file = await readRows(wanted, form, leaving.current.signal);
      save(`${wanted.table}.${form}`, file.text, forms[form].mediaType);
      return file;
    },
  });
  return (
    <>
      {download.isPending && <span aria-live="polite">reading rows…</span>}
      {download.isError && <ProblemNotice error={download.error} />}
      {download.data?.complete === false && (
        <span role="alert">
          The file ends after {formatBytes(downloadMax)}. `reprise table rows --form csv` writes all rows.
        </span>
      )}
      {choices.map((form) => (
        <button
          className="button"
          type="button"
          key={form}
          disabled={download.isPending}
          title="The server reads page by page. A change during the download may be included or not"
          onClick={() => download.mutate(form)}
        >
          {forms[form].name}
        </button>
      ))}
    </>
  );
}
