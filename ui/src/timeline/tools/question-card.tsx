/** Questions of the agent, as a form. The composer is the other way to answer. */
import { useId, useState } from "react";
import { Button, StatusIcon } from "@/components";
import { useTimelineActions } from "../actions";
import { asObject, objectsOf, textOf, type JsonObject } from "../rows/json";
import { humanize } from "../rows/brief";
import type { ToolCall } from "../rows/tool-call";
import type { CardProps } from "./frame";
import { ToolFrame, verbOf } from "./frame";
import { CircleHelp } from "lucide-react";

interface Question {
  readonly text: string;
  readonly options: readonly JsonObject[];
}

export function QuestionCard(props: CardProps) {
  const { call, rowKey, isLast } = props;
  const questions = questionsOf(call);
  const isAsking = call.state === "waiting" || (call.state === "done" && isLast);
  if (isAsking && questions.length > 0) return <QuestionForm call={call} questions={questions} />;
  return (
    <ToolFrame
      call={call}
      rowKey={rowKey}
      icon={CircleHelp}
      verb={verbOf(call, "Asking", "Asked", "Question failed")}
      subject={questions.length === 1 ? (questions[0]?.text ?? "") : `${questions.length} questions`}
      isSentence
    >
      {questions.length > 0 && (
        <ul className="steps">
          {questions.map((question, index) => (
            <li key={index}>{question.text}</li>
          ))}
        </ul>
      )}
    </ToolFrame>
  );
}

function questionsOf(call: ToolCall): readonly Question[] {
  const asked = objectsOf(call.args, "questions");
  const listed = asked.length > 0 ? asked : objectsOf(asObject(call.result), "questions");
  return listed.map((question) => ({
    text: textOf(question, "question") || textOf(question, "header"),
    options: objectsOf(question, "options"),
  }));
}

const COUNTS = ["No questions", "One question", "Two questions", "Three questions", "Four questions"];

function QuestionForm({ call, questions }: { readonly call: ToolCall; readonly questions: readonly Question[] }) {
  const { send, answer } = useTimelineActions();
  const [chosen, setChosen] = useState<readonly (string | null)[]>(() => questions.map(() => null));
  const [isSent, setSent] = useState(false);
  const answered = chosen.filter((label) => label !== null).length;
  const isComplete = answered === questions.length;
  const reply = (labels: readonly (string | null)[]) => {
    setSent(true);
    const answers = questions.map((question, index) => ({ question: question.text, answer: labels[index] ?? "You decide" }));
    const text = answers.map((one) => (questions.length === 1 ? one.answer : `${one.question} ${one.answer}`)).join("\n");
    if (call.state === "waiting") void answer(call.id, { answers }).catch(() => setSent(false));
    else send(text);
  };
  return (
    <section className="ask" aria-label="Question">
      <header>
        <StatusIcon status="requires_action" decorative />
        {COUNTS[questions.length] ?? `${questions.length} questions`}
      </header>
      <div className="ask-b">
        {questions.map((question, index) => (
          <QuestionField
            key={index}
            question={question}
            chosen={chosen[index] ?? null}
            onChoose={(label) => setChosen(chosen.map((old, at) => (at === index ? label : old)))}
          />
        ))}
      </div>
      <footer>
        <Button size="sm" variant="primary" disabled={!isComplete} busy={isSent} onClick={() => reply(chosen)}>
          Answer
        </Button>
        <Button size="sm" variant="quiet" disabled={isSent} onClick={() => reply(chosen)}>
          You decide
        </Button>
        <span className="grow" />
        <span className="s small">
          {answered} of {questions.length} answered
        </span>
      </footer>
    </section>
  );
}

interface QuestionFieldProps {
  readonly question: Question;
  readonly chosen: string | null;
  readonly onChoose: (label: string) => void;
}

function QuestionField({ question, chosen, onChoose }: QuestionFieldProps) {
  const name = useId();
  return (
    <fieldset className="q">
      <legend>{question.text}</legend>
      <div className="opts">
        {question.options.map((option, index) => {
          const label = textOf(option, "label");
          return (
            <label key={index} className={chosen === label ? "opt on" : "opt"}>
              <input type="radio" className="sr" name={name} checked={chosen === label} onChange={() => onChoose(label)} />
              <span className="radio" />
              <b>{label}</b>
              <p>{textOf(option, "description")}</p>
            </label>
          );
        })}
      </div>
    </fieldset>
  );
}

/** A call that somebody outside must answer, with no form of its own. */
export function RequestedCard({ call }: CardProps) {
  const { answer } = useTimelineActions();
  const [isSent, setSent] = useState(false);
  const reply = (output: unknown) => {
    setSent(true);
    void answer(call.id, output).catch(() => setSent(false));
  };
  const command = textOf(call.args, "command");
  return (
    <section className="ask" aria-label="Needs you">
      <header>
        <StatusIcon status="requires_action" decorative />
        {command === "" ? `Waiting for the result of ${humanize(call.name)}` : "Run this command?"}
      </header>
      <div className="ask-b">
        <pre className="cmd">{command === "" ? JSON.stringify(call.args ?? {}, null, 2) : command}</pre>
        <dl className="why">
          <dt>Why it waits</dt>
          <dd>A program outside of chatd runs this tool and sends its result. The chat goes on by itself then.</dd>
        </dl>
      </div>
      <footer>
        <Button size="sm" busy={isSent} onClick={() => reply({ error: "The user declined this call." })}>
          Decline
        </Button>
      </footer>
    </section>
  );
}
