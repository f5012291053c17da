/** Which card shows which tool. */
import "@/styles/ask.css";
import { createElement, type ComponentType } from "react";
import { ApprovalCard } from "./approval-card";
import { InterruptAgentCard, ListAgentsCard, MessageAgentCard, SpawnCard, WaitCard } from "./agent-cards";
import { CommandCard, ProcessListCard, ProcessSignalCard } from "./command-card";
import { EditCard, ReadCard, SearchCard, WriteCard } from "./file-cards";
import type { CardProps } from "./frame";
import { AttachCard, GenericCard, SkillCard, WebSearchCard } from "./other-cards";
import { PlanCard } from "./plan-card";
import { QuestionCard } from "./question-card";
import { RequestedCard } from "./requested-card";
import { TemplatesCard, WorkspaceCard } from "./workspace-card";

const CARDS: ReadonlyMap<string, ComponentType<CardProps>> = new Map([
  ["execute", CommandCard],
  ["process_output", CommandCard],
  ["process_list", ProcessListCard],
  ["process_signal", ProcessSignalCard],
  ["read_file", ReadCard],
  ["write_file", WriteCard],
  ["edit_files", EditCard],
  ["list_files", SearchCard],
  ["list_directory", SearchCard],
  ["search_files", SearchCard],
  ["grep", SearchCard],
  ["glob", SearchCard],
  ["web_search", WebSearchCard],
  ["create_workspace", WorkspaceCard],
  ["start_workspace", WorkspaceCard],
  ["stop_workspace", WorkspaceCard],
  ["list_templates", TemplatesCard],
  ["read_template", TemplatesCard],
  ["spawn_agent", SpawnCard],
  ["spawn_computer_use_agent", SpawnCard],
  ["wait_agent", WaitCard],
  ["message_agent", MessageAgentCard],
  ["interrupt_agent", InterruptAgentCard],
  ["close_agent", InterruptAgentCard],
  ["list_agents", ListAgentsCard],
  ["propose_plan", PlanCard],
  ["ask_user_question", QuestionCard],
  ["attach_file", AttachCard],
  ["read_skill", SkillCard],
  ["read_skill_file", SkillCard],
]);

export const KNOWN_TOOLS: readonly string[] = [...CARDS.keys()];

export function ToolCard(props: CardProps) {
  const { name, state, request } = props.call;
  if (state === "waiting" && request?.kind === "approval") return <ApprovalCard {...props} />;
  if (state === "waiting" && request?.kind !== "question") return <RequestedCard {...props} />;
  return createElement(CARDS.get(name) ?? GenericCard, props);
}
