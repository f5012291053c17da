/** A command that goes on in the workspace: whether it still runs, and how to stop it. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Square } from "lucide-react";
import { useState } from "react";
import { api } from "@/api/client";
import { ApiError } from "@/api/errors";
import type { components } from "@/api/schema";
import { Button } from "@/components";
import { useChatDetails } from "@/connection";
import { toast } from "@/platform/toasts";

type Process = components["schemas"]["ProcessItem"];

const READ_EVERY_MS = 5000;
const processesKey = (chatId: string) => ["timeline", "processes", chatId] as const;

interface ProcessFootProps {
  readonly chatId: string;
  /** Empty: not told yet; then it is found by its command. */
  readonly processId: string;
  readonly command: string;
  /** What is said until the workspace has told more. */
  readonly note: string;
}

export function ProcessFoot({ chatId, processId, command, note }: ProcessFootProps) {
  const isOwner = useChatDetails(chatId).data?.is_owner !== false;
  const process = useProcess(chatId, isOwner, processId, command);
  const client = useQueryClient();
  const [isBusy, setBusy] = useState(false);
  const stop = async (id: string, signal: "terminate" | "kill") => {
    setBusy(true);
    try {
      const after = await api.POST("/api/v1/chats/{chat_id}/workspace/processes/signal", { path: { chat_id: chatId }, body: { process_id: id, signal } });
      client.setQueryData<readonly Process[]>(processesKey(chatId), (known) => known?.map((one) => (one.id === id ? after : one)));
      setAsked(after.running ? id : null);
    } catch (error) {
      toast({ text: error instanceof ApiError ? error.message : "The process was not stopped. Try again.", tone: "danger" });
      await client.invalidateQueries({ queryKey: processesKey(chatId) });
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
    queryKey: processesKey(chatId),
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
