//! The sample module `contacts` in its first version: people with their addresses in one column. `contacts2` is what became of it.
//! Owns: the table below, and the procedures over it.
//! Does not: look at what an address is.
//! Invariants: a name is a first and a last one, with a space between; addresses have a comma between.
//! Called by: tests of deployments that change their data, and readers of the guide.
#![deny(unsafe_code)]

use reprise_procedure::prelude::*;

/// A person. All of a person lies on the partition that the number names.
#[table(name = "contacts", primary_key(id), partition_by = id)]
#[derive(Clone, Debug, PartialEq)]
pub struct Contact {
    pub id: i64,
    /// First name and last name.
    pub name: String,
    /// Addresses with commas between.
    pub emails: String,
}

/// Takes a person up.
#[procedure(partition_by(id))]
pub fn add(tx: &Txn, id: i64, name: String, emails: String) -> Result<(), Abort> {
    Contact::insert(tx, &Contact { id, name, emails })?;
    Ok(())
}

/// A person's name.
#[procedure(partition_by(id), read_only)]
pub fn name(tx: &Txn, id: i64) -> Option<String> {
    Contact::get(tx, id).map(|contact| contact.name.clone())
}

reprise_procedure::module! { tables: [Contact], procedures: [add, name] }
