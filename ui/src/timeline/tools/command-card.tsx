/** Commands: execute, process_output, process_list, process_signal. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { ListTree, Octagon, Square, SquareTerminal } from "lucide-react";
import { useState } from "react";
import { api, ApiError } from "@/api/client";
import { queryKeys } from "@/api/queries";
import type { components } from "@/api/schema";
import { Button } from "@/components";
import { useChatDetails } from "@/connection";
import { toast } from "@/platform/toasts";
import { useTimelineActions } from "../actions";
import { endedText, oneLine } from "../rows/call-view";
import { asObject, objectsOf, textOf } from "../rows/json";
import type { ToolCall } from "../rows/tool-call";
import { type CardProps, ToolFrame } from "./frame";
import { Output } from "./output";

const FAILED_LINES = 20;
const LIVE_LINES = 12;

export function CommandCard({ call, rowKey }: CardProps) {
  const { chatId } = useTimelineActions();
  return (
    <ToolFrame call={call} rowKey={rowKey} icon={SquareTerminal} isErrorLast foot={commandFoot(call, chatId)}>
      {commandBody(call)}
    </ToolFrame>
  );
}

function commandBody(call: ToolCall) {
  const isFailed = call.state === "failed";
  const output = call.result === undefined ? call.liveOutput : textOf(asObject(call.result), "output");
  const command = textOf(call.args, "command");
  const isLong = command.includes("\n") || command.length > 90;
  if (output === "" && !isLong) return null;
  return (
    <>
      {isLong && <Output text={`$ ${command}`} label="Command" />}
      {output !== "" && call.result === undefined && <Output text={output} label="Live output" tail={LIVE_LINES} isLive />}
      {output !== "" && call.result !== undefined && (
        <Output text={output} label={isFailed ? "Output, last lines" : "Output"} {...(isFailed ? { tail: FAILED_LINES } : {})} />
      )}
    </>
  );
}

/** What a command that goes on says below; null of one that has ended with nothing to say. */
function commandFoot(call: ToolCall, chatId: string) {
  const goesOn = call.state === "background" || (call.state === "running" && call.liveOutput !== "");
  const result = asObject(call.result);
  if (!goesOn || chatId === "") return textOf(result, "note") === "" ? undefined : <CommandNote call={call} />;
  const id = textOf(result, "background_process_id") || textOf(call.args, "process_id");
  const note = call.state === "running" ? "Following the output" : id === "" ? "It goes on in the workspace." : `Goes on in the workspace as process ${id}.`;
  return <ProcessFoot chatId={chatId} processId={id} command={textOf(call.args, "command")} note={note} />;
}

function CommandNote({ call }: { readonly call: ToolCall }) {
  const id = textOf(asObject(call.result), "background_process_id");
  if (call.state === "background") return <span>{id === "" ? "It goes on in the workspace." : `Goes on in the workspace as process ${id}.`}</span>;
  if (call.state === "interrupted") return <span>Its process may still run{id === "" ? "" : ` (${id})`}.</span>;
  return <span>{textOf(asObject(call.result), "note")}</span>;
}

export function ProcessListCard({ call, rowKey }: CardProps) {
  const processes = objectsOf(asObject(call.result), "processes");
  return (
    <ToolFrame call={call} rowKey={rowKey} icon={ListTree}>
      {processes.length > 0 && (
        <ul className="tool-steps">
          {processes.map((process, index) => (
            <li key={index}>
              <code className="ui-ellipsis ui-grow">{oneLine(textOf(process, "command"))}</code>
              <span className="tone-subtle">{process.running === true ? "running" : endedText(process) || "ended"}</span>
            </li>
          ))}
        </ul>
      )}
    </ToolFrame>
  );
}

export function ProcessSignalCard({ call, rowKey }: CardProps) {
  return <ToolFrame call={call} rowKey={rowKey} icon={Octagon} />;
}

// A command that goes on in the workspace: whether it still runs, and how to stop it.

type Process = components["schemas"]["ProcessItem"];

const READ_EVERY_MS = 5000;

interface ProcessFootProps {
  readonly chatId: string;
  /** Empty: not told yet; then it is found by its command. */
  readonly processId: string;
  readonly command: string;
  /** What is said until the workspace has told more. */
  readonly note: string;
}

function ProcessFoot({ chatId, processId, command, note }: ProcessFootProps) {
  const isOwner = useChatDetails(chatId).data?.is_owner !== false;
  const process = useProcess(chatId, isOwner, processId, command);
  const client = useQueryClient();
  const [isBusy, setBusy] = useState(false);
  const stop = async (id: string, signal: "terminate" | "kill") => {
    setBusy(true);
    try {
      const after = await api.POST("/api/v1/chats/{chat_id}/workspace/processes/signal", { path: { chat_id: chatId }, body: { process_id: id, signal } });
      client.setQueryData<readonly Process[]>(queryKeys.processes(chatId), (known) => known?.map((one) => (one.id === id ? after : one)));
      setAsked(after.running ? id : null);
    } catch (error) {
      toast({ text: error instanceof ApiError ? error.message : "The process was not stopped. Try again.", tone: "danger" });
      await client.invalidateQueries({ queryKey: queryKeys.processes(chatId) });
    } finally {
      setBusy(false);
    }
  };
  /** The process that was asked to end and did not. */
  const [asked, setAsked] = useState<string | null>(null);
  if (process === null) return <span>{note}</span>;
  if (!process.running) return <span>{endWords(process)}</span>;
  const isStubborn = asked === process.id;
  return (
    <>
      <span>{isStubborn ? "It was asked to end and still runs." : note}</span>
      <span className="ui-grow" />
      <Button size="xs" icon={Square} busy={isBusy} onClick={() => void stop(process.id, isStubborn ? "kill" : "terminate")}>
        {isStubborn ? "End it at once" : "Stop process"}
      </Button>
    </>
  );
}

export function endWords({ exit_code: code }: Pick<Process, "exit_code">): string {
  if (code === null || code < 0) return "The process was stopped.";
  return code === 0 ? "The process has ended." : `The process has ended with exit code ${code}.`;
}

function useProcess(chatId: string, isOwner: boolean, processId: string, command: string): Process | null {
  const { data } = useQuery({
    queryKey: queryKeys.processes(chatId),
    queryFn: async ({ signal }) => (await api.GET("/api/v1/chats/{chat_id}/workspace/processes", { path: { chat_id: chatId }, signal })).items,
    enabled: isOwner,
    retry: false,
    refetchInterval: ({ state }) => (state.status !== "error" && state.data?.some((one) => one.running) === true ? READ_EVERY_MS : false),
  });
  return data === undefined ? null : findProcess(data, processId, command);
}

export function findProcess(processes: readonly Process[], id: string, command: string): Process | null {
  if (id !== "") return processes.find((one) => one.id === id) ?? null;
  return processes.find((one) => one.running && command !== "" && one.command === command) ?? null;
}
