//! Grants: the modules, procedures and tables to which a token is restricted.

use axum::http::Method;
use percent_encoding::percent_decode_str;
use reprise_abi::schema::is_valid_name;

/// A list of modules, and of procedures and tables of modules. A token that has one may do nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grants(Vec<String>);

impl Grants {
    /// Makes a list from `module` and `module.name` words. Err: the first word that is none, or an empty text if there is no word.
    pub fn new(words: &[String]) -> Result<Self, String> {
        let is_grant = |word: &String| word.splitn(2, '.').all(is_valid_name);
        match words.iter().find(|word| !is_grant(word)) {
            Some(wrong) => Err(wrong.clone()),
            None if words.is_empty() => Err(String::new()),
            None => Ok(Self(words.to_vec())),
        }
    }

    /// Whether the whole module is granted.
    fn has_module(&self, module: &str) -> bool {
        !module.contains('.') && self.0.iter().any(|granted| granted == module)
    }

    /// Whether a procedure or a table of a module is granted.
    pub fn has(&self, module: &str, name: &str) -> bool {
        let is_it = |granted: &String| granted.split_once('.') == Some((module, name));
        self.has_module(module) || self.0.iter().any(is_it)
    }

    /// Whether a request to this path is granted. Calls are checked by `has` once their names are read.
    pub fn allow(&self, method: &Method, path: &str) -> bool {
        let Some(path) = path.strip_prefix("/v1/") else {
            return false;
        };
        let (folder, rest) = path.split_once('/').unwrap_or((path, ""));
        let segment = rest.split('/').next().unwrap_or_default();
        let Ok(name) = percent_decode_str(segment).decode_utf8() else {
            return false;
        };
        match folder {
            "batch" | "call" => *method == Method::POST,
            // The key counts within the scope of the token.
            "idempotency" | "status" => method.is_safe(),
            "modules" => self.has_module(&name),
            "tables" => name
                .split_once('.')
                .is_some_and(|(module, table)| self.has(module, table)),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(words: &[&str]) -> Result<Grants, String> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        Grants::new(&words)
    }

    #[test]
    fn words_name_modules_and_what_is_in_them() {
        for wrong in ["", ".", "shop.", ".orders", "shop.orders.id", "Shop", "shop.*", "*"] {
            assert_eq!(grants(&["bank", wrong]), Err(wrong.to_owned()), "{wrong:?}");
        }
        assert_eq!(grants(&[]), Err(String::new()));
        let granted = grants(&["bank", "shop.checkout", "shop.orders"]).expect("good words");
        for (module, name, expected) in [
            ("bank", "transfer", true),
            ("shop", "checkout", true),
            ("shop", "orders", true),
            ("shop", "refund", false),
            ("check", "checkout", false),
            ("shop.checkout", "", false),
            ("", "bank", false),
        ] {
            assert_eq!(granted.has(module, name), expected, "{module}.{name}");
        }
    }

    #[test]
    fn paths_that_show_or_change_something_else_are_not_granted() {
        let granted = grants(&["bank", "shop.orders"]).expect("good words");
        for (method, path, expected) in [
            ("POST", "/v1/batch", true),
            ("POST", "/v1/call/other/p", true), // refused once the names are read
            ("GET", "/v1/status", true),
            ("GET", "/v1/idempotency/k", true),
            ("GET", "/v1/modules/bank", true),
            ("GET", "/v1/modules/b%61nk/openapi.json", true),
            ("PUT", "/v1/modules/bank", true),
            ("POST", "/v1/modules/bank/rollback", true),
            ("GET", "/v1/modules/shop", false),
            ("PUT", "/v1/modules/shop", false),
            ("GET", "/v1/modules", false),
            ("GET", "/v1/modules/", false),
            ("GET", "/v1/modules//bank", false),
            ("GET", "/v1/tables/shop.orders/rows", true),
            ("GET", "/v1/tables/shop%2Eorders", true),
            ("GET", "/v1/tables/bank.accounts", true),
            ("GET", "/v1/tables/shop.customers", false),
            ("GET", "/v1/tables/orders", false),
            ("GET", "/v1/tables", false),
            ("GET", "/v1/tables/%ff", false),
            ("GET", "/v1/log", false),
            ("GET", "/v1/audit", false),
            ("GET", "/v1/calls", false),
            ("GET", "/v1/events", false),
            ("GET", "/v1/procedure-log", false),
            ("POST", "/v1/checkpoints", false),
            ("POST", "/v1/replication/promote", false),
            ("GET", "/metrics", false),
            ("GET", "/v1", false),
            ("GET", "/", false),
        ] {
            let method: Method = method.parse().expect("a method");
            assert_eq!(granted.allow(&method, path), expected, "{method} {path}");
        }
    }
}
