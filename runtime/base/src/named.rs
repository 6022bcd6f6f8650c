//! Enums whose values have names.

/// Declares an enum of named values. It gets `ALL` in the order of declaration, and `name`. `Display` writes the name, and `FromStr` reads it; its error
/// says which names there are.
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$about:meta])*
        $vis:vis enum $named:ident {
            $($(#[$doc:meta])* $value:ident $(= $number:literal)? => $name:literal,)+
        }
    ) => {
        $(#[$about])*
        $vis enum $named {
            $($(#[$doc])* $value $(= $number)?,)+
        }

        impl $named {
            /// Every value, in the order of declaration.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// Returns the name of the value.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)+
                }
            }
        }

        impl ::std::fmt::Display for $named {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl ::std::str::FromStr for $named {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let found = Self::ALL.into_iter().find(|value| value.name() == text);
                found.ok_or_else(|| $crate::names::take_one_of(&Self::ALL.map(Self::name)))
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use crate::Safety;

    #[test]
    fn names_read_back_and_an_unknown_one_gets_the_list() {
        for level in Safety::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        let unknown = "3-safe".parse::<Safety>();
        assert_eq!(
            unknown.as_ref().map_err(String::as_str),
            Err("take local-async, local-sync, 1-safe, 2-safe, quorum or very-safe")
        );
    }
}
