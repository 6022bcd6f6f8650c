import { Command, serverUrl } from '../ui/command';
import { Empty } from '../ui/empty';

/** What to do on a server without modules. */
export function FirstModule() {
  return (
    <Empty title="No module is in service yet">
      <p>
        A module is a WebAssembly file with stored procedures and the tables that they use. Drop one on the Modules
        page, or upload one from a shell:
      </p>
      <Command text={`curl -X PUT --data-binary @target/procedures/voter.wasm ${serverUrl()}/v1/modules/voter`} />
    </Empty>
  );
}
