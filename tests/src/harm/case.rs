//! A generated program: a list of steps, and its text, which replays it.

use std::fmt;

/// One step of a program, which may contain other steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Name of the action, which `harm_steps.c` defines.
    pub name: String,
    /// Up to three arguments of the action.
    pub numbers: Vec<i64>,
    /// The contained steps: of a thread, a child or a handler.
    pub body: Option<Vec<Step>>,
}

/// A generated program with its surroundings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Whether it is linked with an allocator that signals may interrupt and leave.
    pub is_signal_safe: bool,
    /// A signal that the parent of the program ignores.
    pub ignored: Option<i64>,
    /// The steps of the main thread.
    pub steps: Vec<Step>,
}

/// Prefix of the argument for [`Case::ignored`].
const IGNORING: &str = "ignoring:";

impl Step {
    /// Returns a step without contained steps.
    pub fn leaf(name: &str, numbers: &[i64]) -> Step {
        Step { name: name.to_owned(), numbers: numbers.to_vec(), body: None }
    }

    /// Returns a step with contained steps.
    pub fn block(name: &str, numbers: &[i64], body: Vec<Step>) -> Step {
        Step { name: name.to_owned(), numbers: numbers.to_vec(), body: Some(body) }
    }

    fn arguments(&self, arguments: &mut Vec<String>) {
        let mut word = self.name.clone();
        self.numbers.iter().for_each(|number| word += &format!(":{number}"));
        let Some(body) = &self.body else { return arguments.push(word) };
        arguments.push(word + "{");
        body.iter().for_each(|step| step.arguments(arguments));
        arguments.push("}".to_owned());
    }

    /// Returns whether `holds` is true for this step or for a contained one.
    pub fn any(&self, holds: &impl Fn(&Step) -> bool) -> bool {
        holds(self) || self.body.iter().flatten().any(|step| step.any(holds))
    }

    /// Returns its name and first number, as in `fork:2`.
    pub fn is(&self, name: &str, first: i64) -> bool {
        self.name == name && self.numbers.first() == Some(&first)
    }
}

impl Case {
    /// Returns the arguments of `harm_steps`.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        self.steps.iter().for_each(|step| step.arguments(&mut arguments));
        arguments
    }

    /// Returns whether `holds` is true for any step.
    pub fn any(&self, holds: impl Fn(&Step) -> bool) -> bool {
        self.steps.iter().any(|step| step.any(&holds))
    }

    /// Parses the text that [`fmt::Display`] writes.
    ///
    /// # Errors
    /// Returns an error that names the invalid argument.
    pub fn parse(text: &str) -> Result<Case, String> {
        let mut arguments = text.split_whitespace().peekable();
        let is_signal_safe = arguments.next_if_eq(&"signal-safe").is_some();
        let ignored = arguments.next_if(|word| word.starts_with(IGNORING)).map(|word| word[IGNORING.len()..].parse());
        let ignored = ignored.transpose().map_err(|error| format!("{IGNORING}: {error}"))?;
        let mut open: Vec<Step> = Vec::new();
        let mut steps = Vec::new();
        for word in arguments {
            if word == "}" {
                let mut step = open.pop().ok_or("a closing brace too many")?;
                step.body = Some(std::mem::replace(&mut steps, step.body.take().unwrap_or_default()));
                steps.push(step);
                continue;
            }
            let (plain, is_open) = word.strip_suffix('{').map_or((word, false), |plain| (plain, true));
            let mut parts = plain.split(':');
            let name = parts.next().unwrap_or_default();
            let numbers: Result<Vec<i64>, _> = parts.map(str::parse).collect();
            let numbers = numbers.map_err(|error| format!("{word}: {error}"))?;
            let step = Step { name: name.to_owned(), numbers, body: None };
            if is_open {
                // While a block is open, its body contains the steps before it.
                open.push(Step { body: Some(std::mem::take(&mut steps)), ..step });
            } else {
                steps.push(step);
            }
        }
        if open.is_empty() {
            Ok(Case { is_signal_safe, ignored, steps })
        } else {
            Err("an open brace too many".to_owned())
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = if self.is_signal_safe { "signal-safe " } else { "" };
        let second = self.ignored.map(|signal| format!("{IGNORING}{signal} ")).unwrap_or_default();
        write!(out, "{first}{second}{}", self.arguments().join(" "))
    }
}
