//! One setting: its value, the source of the value, and the declaration. From the declaration come the flag, the environment variable, the
//! key of the file, the check, and the line that shows it.

use std::{fmt, path::Path, str::FromStr};

use crate::output::{VerbFailure, usage};

/// The source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Flag,
    Environment,
    File,
    /// The setting that the database was created with.
    Database,
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flag => "flag",
            Self::Environment => "environment",
            Self::File => "file",
            Self::Database => "database",
            Self::Default => "default",
        })
    }
}

/// A value and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting<T> {
    pub value: T,
    pub source: Source,
}

pub fn by_default<T>(value: T) -> Setting<T> {
    Setting {
        value,
        source: Source::Default,
    }
}

impl<T> Setting<T> {
    /// The setting of what may be left out.
    pub fn or_none(picked: Option<Self>) -> Setting<Option<T>> {
        match picked {
            None => by_default(None),
            Some(Self { value, source }) => Setting {
                value: Some(value),
                source,
            },
        }
    }
}

impl<T: Clone> Setting<Option<T>> {
    /// Returns the setting. None if no source gives it.
    pub fn said(&self) -> Option<Setting<T>> {
        let value = self.value.clone()?;
        Some(Setting {
            value,
            source: self.source,
        })
    }
}

/// A setting in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingEntry {
    /// The name of the flag.
    pub name: String,
    pub value: String,
    /// Tells apart two values that are shown alike. It is compared, and never shown.
    pub hidden: String,
    pub source: Source,
    /// True if it can be changed while the server runs.
    pub is_live: bool,
    pub is_shown: bool,
}

impl SettingEntry {
    /// `name` as in the program, with underscores.
    pub fn new(name: &str, value: String, source: Source) -> Self {
        Self {
            name: name.replace('_', "-"),
            value,
            hidden: String::new(),
            source,
            is_live: false,
            is_shown: true,
        }
    }

    /// Adds what tells values apart that are shown alike.
    pub fn hiding(mut self, hidden: String) -> Self {
        self.hidden = hidden;
        self
    }

    /// SIGHUP changes it.
    pub fn live(mut self) -> Self {
        self.is_live = true;
        self
    }

    /// Shows the setting only if a source gives it.
    pub fn where_said(mut self) -> Self {
        self.is_shown = self.source != Source::Default;
        self
    }
}

/// How a value is shown.
pub trait Show {
    fn shown(&self) -> String;

    /// Returns the part that is not shown.
    fn hidden(&self) -> String {
        String::new()
    }
}

macro_rules! shown_by_display {
    ($($kind:ty),*) => {
        $(impl Show for $kind {
            fn shown(&self) -> String {
                self.to_string()
            }
        })*
    };
}

shown_by_display!(
    u16,
    u32,
    u64,
    String,
    reprise_base::Safety,
    reprise_database::CommitMode,
    reprise_database::FlushPolicy,
    reprise_database::LogPolicy,
    reprise_database::ShipForm,
    super::device::DeviceKind,
    super::replication::Transport,
    crate::server_output::LogFormat
);

impl Show for std::path::PathBuf {
    fn shown(&self) -> String {
        self.display().to_string()
    }
}

impl<T: Show> Show for Option<T> {
    fn shown(&self) -> String {
        self.as_ref().map_or_else(|| "none".into(), Show::shown)
    }

    fn hidden(&self) -> String {
        self.as_ref().map(Show::hidden).unwrap_or_default()
    }
}

/// The layers below the flags: the flags that came from the environment, and the file, from which each setting takes its own.
pub struct Layers<'a> {
    source_of: &'a dyn Fn(&str) -> Source,
    path: &'a Path,
    /// Keys that no setting took yet.
    file: toml::Table,
    /// Keys that were asked for.
    known: Vec<&'static str>,
}

/// The key that a section's plain value belongs to, as in `log = MODE`.
const SHORT_KEY: &str = "mode";

impl<'a> Layers<'a> {
    /// `source_of`: of a flag that has a value. `path` names the file in messages.
    pub fn new(source_of: &'a dyn Fn(&str) -> Source, path: &'a Path, file: toml::Table) -> Self {
        Self {
            source_of,
            path,
            file,
            known: Vec::new(),
        }
    }

    /// The first layer that has a value. The value in the file is always checked. `key` is KEY or SECTION.KEY.
    pub fn pick<T>(
        &mut self,
        name: &str,
        key: &'static str,
        given: Option<T>,
        check: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<Setting<T>>, VerbFailure> {
        let in_file = self.take(key).map(|value| match value {
            toml::Value::String(text) => check(&text),
            other => check(&other.to_string()),
        });
        let section = key.split('.').next().unwrap_or(key);
        let in_file = in_file.transpose().map_err(|error| self.refused(section, error))?;
        let setting = |value, source| Setting { value, source };
        Ok(match given {
            Some(value) => Some(setting(value, (self.source_of)(name))),
            None => in_file.map(|value| setting(value, Source::File)),
        })
    }

    /// Takes the value of a key out of the file.
    pub fn take(&mut self, key: &'static str) -> Option<toml::Value> {
        self.known.push(key);
        let Some((section, key)) = key.split_once('.') else {
            return self.file.remove(key);
        };
        match self.file.get_mut(section)? {
            toml::Value::Table(entries) => entries.remove(key),
            _ if key == SHORT_KEY => self.file.remove(section),
            _ => None,
        }
    }

    /// A mistake in the file.
    pub fn refused(&self, name: &str, error: impl fmt::Display) -> VerbFailure {
        usage(format!("{}: {name}: {error}", self.path.display()))
    }

    /// Refuses keys that no setting has taken.
    pub fn finish(self) -> Result<(), VerbFailure> {
        for (name, value) in &self.file {
            let own: Vec<_> = self.known.iter().filter_map(|key| key.split_once('.')).collect();
            let keys = own.iter().filter(|(section, _)| section == name).map(|(_, key)| *key);
            let keys: Vec<_> = keys.collect();
            match value {
                toml::Value::Table(left) if !keys.is_empty() => {
                    if let Some(unknown) = left.keys().next() {
                        return Err(self.refused(name, unknown_field(unknown, &keys)));
                    }
                }
                _ => {
                    let path = self.path.display();
                    return Err(usage(format!("{path}: {}", unknown_field(name, &self.known))));
                }
            }
        }
        Ok(())
    }
}

fn unknown_field(name: &str, known: &[&str]) -> String {
    format!("unknown field `{name}`, expected one of {}", known.join(", "))
}

/// The check of settings that have none of their own.
pub fn parsed<T: FromStr<Err: fmt::Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error| format!("{text:?}: {error}"))
}

/// A whole number from `min` to `max`.
pub fn bounded(text: &str, what: &str, min: u64, max: u64) -> Result<u64, String> {
    match text.parse() {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        _ => Err(format!("{what} must be from {min} to {max}")),
    }
}

/// Declares the settings of one subject, each once. A declaration has the text for `--help`, the name, the type, the environment variable,
/// and the flag's argument. The name is that of the flag, with hyphens, and of the key in the file. A declaration may have any of these,
/// too:
/// - a check (`fn(&str) -> Result<T, String>`, for flag, environment and file)
/// - a default (without one the value is an `Option`)
/// - another key in the file
/// - a form for display
/// - marks (`live`, `where_said`)
///
/// From it come the flags, the settings, the code that picks them, and their lines.
macro_rules! settings {
    (
        $(#[$about:meta])*
        $settings:ident from $args:ident under $heading:literal {
            $(
                $(#[$help:meta])+
                $name:ident: $kind:ty {
                    env: $env:literal,
                    takes: $takes:literal,
                    $(check: $check:expr,)?
                    $(default: $default:expr,)?
                    $(key: $key:literal,)?
                    $(show: $show:expr,)?
                    $(marks: [$($mark:ident),*],)?
                }
            )*
        }
    ) => {
        #[derive(Clone, Default, clap::Args)]
        #[command(next_help_heading = $heading)]
        pub struct $args {
            $(
                $(#[$help])+
                #[arg(long, env = $env, hide_env_values = true, value_name = $takes $(, value_parser = $check)?)]
                pub $name: Option<$kind>,
            )*
        }

        $(#[$about])*
        pub struct $settings {
            $(
                $(#[$help])+
                pub $name: settings!(@type $kind; $($default)?),
            )*
        }

        impl $settings {
            pub fn pick(
                args: $args,
                layers: &mut $crate::config::setting::Layers<'_>,
            ) -> Result<Self, $crate::output::VerbFailure> {
                Ok(Self {
                    $(
                        $name: settings!(
                            @or layers.pick(
                                stringify!($name),
                                settings!(@key stringify!($name); $($key)?),
                                args.$name,
                                settings!(@check $($check)?),
                            )?;
                            $($default)?
                        ),
                    )*
                })
            }

            /// Each in words.
            pub fn entries(&self) -> Vec<$crate::config::setting::SettingEntry> {
                vec![
                    $(
                        $crate::config::setting::SettingEntry::new(
                            stringify!($name),
                            settings!(@show &self.$name.value; $($show)?),
                            self.$name.source,
                        )
                        .hiding(settings!(@hidden &self.$name.value; $($show)?))
                        $($(.$mark())*)?,
                    )*
                ]
            }
        }
    };
    (@type $kind:ty; ) => { $crate::config::setting::Setting<Option<$kind>> };
    (@type $kind:ty; $default:expr) => { $crate::config::setting::Setting<$kind> };
    (@or $picked:expr; ) => { $crate::config::setting::Setting::or_none($picked) };
    (@or $picked:expr; $default:expr) => {
        $picked.unwrap_or_else(|| $crate::config::setting::by_default($default))
    };
    (@key $name:expr; ) => { $name };
    (@key $name:expr; $key:literal) => { $key };
    (@check ) => { $crate::config::setting::parsed };
    (@check $check:expr) => { $check };
    (@show $value:expr; ) => { $crate::config::setting::Show::shown($value) };
    (@show $value:expr; $show:expr) => { $show($value) };
    (@hidden $value:expr; ) => { $crate::config::setting::Show::hidden($value) };
    (@hidden $value:expr; $show:expr) => { String::new() };
}

pub(super) use settings;
