//! The definition of the command line, and every command that the documentation and the help texts show.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::{CommandFactory, error::ErrorKind};

use super::*;

#[test]
fn the_definition_holds_together_and_every_verb_has_an_example() {
    Cli::command().debug_assert();
    fn check(command: &clap::Command) {
        let help = help_after(command);
        assert!(help.contains("Example"), "{} has no example", command.get_name());
        command.get_subcommands().for_each(check);
    }
    check(&Cli::command());
}

#[test]
fn later_modes_are_refused_with_a_reason() {
    assert!(Cli::try_parse_from(["reprise", "serve", "--log", "both"]).is_ok());
    assert!(Cli::try_parse_from(["reprise", "serve", "--log", "physical"]).is_err());
    assert!(Cli::try_parse_from(["reprise", "recover", "--data-dir", "x", "--recover-from", "none"]).is_err());
    assert!(Cli::try_parse_from(["reprise", "serve", "--device", "tape"]).is_err());
    assert!(Cli::try_parse_from(["reprise", "serve", "--partitions", "0"]).is_err());
}

#[test]
fn every_argument_has_a_help_text() {
    fn check(command: &clap::Command, path: &str) {
        let path = format!("{path} {}", command.get_name());
        assert!(command.get_about().is_some(), "{path} has no help text");
        for argument in command.get_arguments() {
            assert!(
                argument.get_help().is_some(),
                "{path}: {} has no help text",
                argument.get_id()
            );
        }
        command.get_subcommands().for_each(|verb| check(verb, &path));
    }
    check(&Cli::command(), "");
}

#[test]
fn program_accepts_every_command_in_the_docs() {
    let mut shown = 0;
    let mut faults = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).expect("read a page");
        for command in fenced_commands(&text).into_iter().chain(inline_commands(&text)) {
            shown += 1;
            if let Some(fault) = command.fault() {
                faults.push(format!("{}:{}: {fault}", page.display(), command.line));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(shown > 100, "the docs show {shown} commands: are they found?");
}

#[test]
fn program_accepts_every_command_in_the_help() {
    let mut shown = 0;
    fn check(command: &clap::Command, shown: &mut u32) {
        for line in help_after(command)
            .lines()
            .filter(|line| line.starts_with("  reprise "))
        {
            // An explanation follows after several spaces.
            let example = line.trim().split("   ").next().unwrap_or_default();
            for words in simple_commands(example) {
                *shown += 1;
                let found = DocCommand::of(words, 0, false);
                let fault = found.and_then(|found| found.fault());
                assert_eq!(fault, None, "{}: {example}", command.get_name());
            }
        }
        command.get_subcommands().for_each(|verb| check(verb, shown));
    }
    check(&Cli::command(), &mut shown);
    assert!(shown > 40, "the help shows {shown} commands: are they found?");
}

fn help_after(command: &clap::Command) -> String {
    command.get_after_help().map(ToString::to_string).unwrap_or_default()
}

/// A command of `reprise` in a page.
struct DocCommand {
    /// Number of the line, from 1.
    line: usize,
    words: Vec<String>,
    /// Prose may name a verb without its arguments.
    is_inline: bool,
}

impl DocCommand {
    /// Returns None for a command of another program.
    fn of(words: Vec<String>, line: usize, is_inline: bool) -> Option<Self> {
        let is_assignment = |word: &String| {
            let name = word.split_once('=').map_or("", |(name, _)| name);
            !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
        };
        let mut words: Vec<_> = words.into_iter().skip_while(is_assignment).collect();
        let program = words.first_mut()?;
        if let Some(path) = program.strip_prefix("ExecStart=") {
            *program = path.to_owned();
        }
        let is_own = program == "reprise" || program.ends_with("/reprise");
        is_own.then_some(Self { line, words, is_inline })
    }

    /// Returns why the program does not take the command.
    fn fault(&self) -> Option<String> {
        let number = |word: &String| match word.as_str() {
            "N" | "ID" | "LSN" => "1".to_owned(), // placeholders of numbers
            _ => word.clone(),
        };
        let error = Cli::try_parse_from(self.words.iter().map(number)).err()?;
        let ends_in_flag = self.words.last().is_some_and(|word| word.starts_with("--"));
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => None,
            ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                if self.is_inline =>
            {
                None
            }
            ErrorKind::InvalidValue if self.is_inline && ends_in_flag => None, // a flag named without its value
            _ => Some(format!("{}\n{error}", self.words.join(" "))),
        }
    }
}

/// Returns README.md and every page below docs.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("list a folder of docs") {
            let path = entry.expect("read an entry").path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|extension| extension == "md") => pages.push(path),
                false => {}
            }
        }
    }
    pages.sort();
    pages
}

fn is_fence(line: &str) -> bool {
    line.trim_start().starts_with("```")
}

fn fenced_commands(page: &str) -> Vec<DocCommand> {
    let mut commands = Vec::new();
    let (mut is_fenced, mut joined) = (false, String::new());
    for (line, text) in page.lines().enumerate() {
        if is_fence(text) {
            is_fenced = !is_fenced;
            continue;
        }
        if !is_fenced {
            continue;
        }
        if let Some(part) = text.strip_suffix('\\') {
            joined.push_str(part);
            continue;
        }
        joined.push_str(text);
        let found = simple_commands(&joined).into_iter();
        commands.extend(found.filter_map(|words| DocCommand::of(words, line + 1, false)));
        joined.clear();
    }
    commands
}

/// Returns the commands in code spans of the prose.
fn inline_commands(page: &str) -> Vec<DocCommand> {
    let mut commands = Vec::new();
    let mut is_fenced = false;
    for (line, text) in page.lines().enumerate() {
        is_fenced ^= is_fence(text);
        if is_fenced || is_fence(text) {
            continue;
        }
        for span in text
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|span| span.starts_with("reprise "))
        {
            let found = simple_commands(span).into_iter();
            commands.extend(found.filter_map(|words| DocCommand::of(words, line + 1, true)));
        }
    }
    commands
}

/// Splits a line of shell into its simple commands, without comments and redirections.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut command, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut is_redirected = false;
    let mut rest = line.chars();
    loop {
        let next = rest.next();
        match next {
            Some('#') if word.is_none() => rest = "".chars(),
            Some(quote @ ('\'' | '"')) => {
                let quoted: String = rest.by_ref().take_while(|c| *c != quote).collect();
                word.get_or_insert_default().push_str(&quoted);
            }
            Some('\\') => word.get_or_insert_default().extend(rest.next()),
            Some('$') if rest.as_str().starts_with('(') => {
                let inner: String = rest.by_ref().take_while(|c| *c != ')').collect();
                word.get_or_insert_default().push_str(&inner);
            }
            Some(c) if !c.is_whitespace() && !"|&;<>".contains(c) => word.get_or_insert_default().push(c),
            other => {
                let ended = word.take().filter(|_| !is_redirected);
                command.extend(ended);
                is_redirected |= matches!(other, Some('<' | '>'));
                if matches!(other, None | Some('|' | '&' | ';')) {
                    commands.push(std::mem::take(&mut command));
                    is_redirected = false;
                }
                if other.is_none() {
                    commands.retain(|words: &Vec<String>| !words.is_empty());
                    return commands;
                }
            }
        }
    }
}
