//! The memory of refusals: calls of one client may be many, and each may have many mistakes.

use reprise_api::{ArgumentError, Problem, ProblemKind};
use reprise_codec::ArgsError;

use crate::{limits::REFUSED_BYTES_MAX, refusal::Refusal};

/// Boxes the refusal of one of several calls that travel together. `held_bytes` counts all of them, and beyond the bound each is shortened.
pub fn bounded(mut refusal: Refusal, held_bytes: &mut usize) -> Box<Refusal> {
    if *held_bytes > REFUSED_BYTES_MAX {
        refusal.shorten();
    }
    *held_bytes += refusal.held_bytes();
    Box::new(refusal)
}

impl Refusal {
    /// Counts the bytes of memory, about.
    fn held_bytes(&self) -> usize {
        let problem = &*self.problem;
        let errors = problem.errors.iter();
        let errors = errors.map(|error| size_of::<ArgumentError>() + error.pointer.len() + error.message.len());
        size_of::<Problem>() + problem.detail.len() + errors.sum::<usize>()
    }

    /// Keeps the first of its mistakes alone.
    fn shorten(&mut self) {
        let problem = &mut *self.problem;
        if problem.errors.len() > 1 {
            let more = problem.errors.len() - 1;
            problem.errors.truncate(1);
            problem.errors.shrink_to_fit();
            let left_out =
                format!("; the answer leaves out {more} more, because the server refused many calls of one request");
            problem.detail.push_str(&left_out);
        }
    }
}

impl From<ArgsError> for Refusal {
    fn from(error: ArgsError) -> Self {
        match error {
            ArgsError::Syntax(error) => {
                Self::malformed(format!("the arguments are not JSON in UTF-8, or not CBOR: {error}"))
            }
            ArgsError::TooLarge => Self::too_large("encoded arguments", reprise_abi::value::ARGS_BYTES_MAX),
            ArgsError::Invalid(errors) => {
                let detail = "correct the arguments in errors, which names each by a JSON pointer";
                let mut problem = Problem::new(ProblemKind::InvalidArguments, detail);
                problem.errors = errors;
                problem.into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_that_is_shortened_names_its_first_mistake() {
        let error = |at: usize| ArgumentError {
            pointer: format!("/{at}"),
            message: "m".repeat(1_000),
        };
        let mut problem = Problem::new(ProblemKind::InvalidArguments, "correct them");
        problem.errors = (0..60).map(error).collect();
        let mut refusal = Refusal::from(problem);
        assert!(refusal.held_bytes() > 60_000);
        refusal.shorten();
        assert!(refusal.held_bytes() < 4_000, "{}", refusal.held_bytes());
        assert_eq!(refusal.problem.errors[0].pointer, "/0");
        assert!(
            refusal.problem.detail.contains("leaves out 59 more"),
            "{}",
            refusal.problem.detail
        );
        let before = refusal.problem.detail.clone();
        refusal.shorten();
        assert_eq!(refusal.problem.detail, before);
    }

    #[test]
    fn of_many_refusals_the_later_ones_are_short() {
        let mut held = 0;
        let refusals = (0..256).map(|_| {
            let mut problem = Problem::new(ProblemKind::InvalidArguments, "correct them");
            let error = ArgumentError {
                pointer: "/x".into(),
                message: "m".repeat(100),
            };
            problem.errors = vec![error; 64];
            bounded(problem.into(), &mut held)
        });
        let counts: Vec<_> = refusals.map(|refusal| refusal.problem.errors.len()).collect();
        assert_eq!((counts[0], counts[255]), (64, 1));
        assert!(held < (2 * REFUSED_BYTES_MAX) + 256 * 2_000, "{held}");
    }
}
