/** Questions of the agent, as a form. The composer is the other way to answer. */
import { CircleHelp } from "lucide-react";
import { useId, useState } from "react";
import type { RequestedCall } from "@/chat-state/types";
import { Button, StatusIcon } from "@/components";
import { type CallAnswer, useTimelineActions } from "../actions";
import { questionText } from "../rows/call-view";
import { asObject, type JsonObject, objectsOf, textOf, textsOf } from "../rows/json";
import { Deadline } from "./approval-card";
import { type CardProps, ToolFrame } from "./frame";

interface Question {
  readonly text: string;
  readonly options: readonly JsonObject[];
  readonly isMulti: boolean;
}

export function QuestionCard({ call, rowKey }: CardProps) {
  const { decide } = useTimelineActions();
  const questions = questionsOf(call.args);
  if (call.state === "waiting" && call.request !== null && questions.length > 0) {
    return <QuestionForm request={call.request} questions={questions} from="" onAnswer={decide} />;
  }
  const answers = objectsOf(asObject(call.result), "answers");
  return (
    <ToolFrame call={call} rowKey={rowKey} icon={CircleHelp} isErrorLast>
      {questions.length > 0 && (
        <dl className="ask-answers">
          {questions.map((question, index) => (
            <div key={index}>
              <dt className={questions.length > 1 ? undefined : "ui-screen-reader"}>{question.text}</dt>
              <dd>{answerText(answers[index]) || <span className="tone-subtle">No answer</span>}</dd>
            </div>
          ))}
        </dl>
      )}
    </ToolFrame>
  );
}

function answerText(answer: JsonObject | undefined): string {
  if (answer === undefined) return "";
  return [textsOf(answer, "chosen").join(", "), textOf(answer, "text")].filter(Boolean).join(". ");
}

export function questionsOf(args: JsonObject | null): readonly Question[] {
  return objectsOf(args, "questions").map((question) => ({
    text: questionText(question),
    options: optionsOf(question),
    isMulti: question.multi_select === true,
  }));
}

/** Models also write an option as its label alone. */
function optionsOf(question: JsonObject): readonly JsonObject[] {
  const labels = textsOf(question, "options");
  return labels.length > 0 ? labels.map((label) => ({ label })) : objectsOf(question, "options");
}

const COUNTS = ["No questions", "One question", "Two questions", "Three questions", "Four questions"];

interface QuestionFormProps {
  readonly request: RequestedCall;
  readonly questions: readonly Question[];
  /** The subagent that asks; empty: this chat. */
  readonly from: string;
  readonly onAnswer: (answer: CallAnswer) => Promise<void>;
}

export function QuestionForm({ request, questions, from, onAnswer }: QuestionFormProps) {
  const [replies, setReplies] = useState<readonly Reply[]>(() => questions.map(() => NO_REPLY));
  const [sent, setSent] = useState<CallAnswer["decision"] | null>(null);
  const answered = replies.filter(isAnswered).length;
  const isComplete = answered === questions.length;
  const send = (answer: Omit<CallAnswer, "tool_call_id">) => {
    if (sent !== null) return;
    setSent(answer.decision);
    void onAnswer({ tool_call_id: request.tool_call_id, ...answer }).catch(() => setSent(null));
  };
  return (
    <section className="ask-card" aria-label="Question">
      <header>
        <StatusIcon status="requires_action" decorative />
        {COUNTS[questions.length] ?? `${questions.length} questions`}
        {from !== "" && <span className="ui-meta ui-ellipsis">{from}</span>}
      </header>
      <div className="ask-body">
        {questions.map((question, index) => (
          <QuestionField
            key={index}
            question={question}
            reply={replies[index] ?? NO_REPLY}
            onReply={(reply) => setReplies((known) => known.map((old, at) => (at === index ? reply : old)))}
          />
        ))}
      </div>
      <footer>
        <Button
          size="sm"
          variant="primary"
          disabled={!isComplete || (sent !== null && sent !== "answer")}
          busy={sent === "answer"}
          onClick={() => send({ decision: "answer", replies: replies.map(({ labels, text }) => ({ labels: [...labels], text: text.trim() })) })}
        >
          Answer
        </Button>
        <Button
          size="sm"
          variant="quiet"
          busy={sent === "deny"}
          disabled={sent !== null && sent !== "deny"}
          onClick={() => send({ decision: "deny", reason: "Decide yourself." })}
        >
          You decide
        </Button>
        <span className="ui-grow" />
        <span className="tone-subtle ask-small">
          {answered} of {questions.length} answered
        </span>
        <Deadline at={request.deadline ?? null} />
      </footer>
    </section>
  );
}

interface QuestionFieldProps {
  readonly question: Question;
  readonly reply: Reply;
  readonly onReply: (reply: Reply) => void;
}

function QuestionField({ question, reply, onReply }: QuestionFieldProps) {
  const name = useId();
  return (
    <fieldset className="ask-question">
      <legend>{question.text}</legend>
      <div className="ask-options">
        {question.options.map((option, index) => {
          const label = textOf(option, "label");
          const isOn = reply.labels.includes(label);
          return (
            <label key={index} className={isOn ? "ask-option is-on" : "ask-option"}>
              <input
                type={question.isMulti ? "checkbox" : "radio"}
                className="ui-screen-reader"
                name={name}
                checked={isOn}
                onChange={() => onReply(toggled(reply, label, question.isMulti))}
              />
              <span className={question.isMulti ? "ask-radio is-check" : "ask-radio"} />
              <b>{label}</b>
              <p>{textOf(option, "description")}</p>
            </label>
          );
        })}
      </div>
      <input
        className="ui-field ask-own"
        aria-label={`Own words: ${question.text}`}
        placeholder="Or in your own words"
        maxLength={20_000}
        value={reply.text}
        onChange={(event) => onReply({ ...reply, text: event.target.value })}
      />
    </fieldset>
  );
}

/** The reply to one question while it is being made: chosen options, own words, or both. */
interface Reply {
  readonly labels: readonly string[];
  readonly text: string;
}

const NO_REPLY: Reply = { labels: [], text: "" };

function isAnswered(reply: Reply): boolean {
  return reply.labels.length > 0 || reply.text.trim() !== "";
}

/** Of several only if the question allows it. */
function toggled(reply: Reply, label: string, isMulti: boolean): Reply {
  if (!isMulti) return { ...reply, labels: [label] };
  const isOn = reply.labels.includes(label);
  return { ...reply, labels: isOn ? reply.labels.filter((one) => one !== label) : [...reply.labels, label] };
}
