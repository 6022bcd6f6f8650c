//! The sample module `contacts` in its second version: the name in two columns, and a table of addresses. What `contacts1` stored is taken
//! apart when this version is deployed.
//! Owns: the tables below, the procedures over them, and the way from the version before.
//! Does not: look at what an address is.
//! Invariants: every address is of a contact that there is.
//! Called by: tests of deployments that change their data, and readers of the guide.
#![deny(unsafe_code)]

use reprise_procedure::prelude::*;

/// A person. All of a person lies on the partition that the number names.
#[table(name = "contacts", primary_key(id), partition_by = id)]
#[derive(Clone, Debug, PartialEq)]
pub struct Contact {
    pub id: i64,
    #[column(default = "")]
    pub first: String,
    #[column(default = "")]
    pub last: String,
}

/// A person as the version before had it, for `migrate` alone.
#[table(name = "contacts", primary_key(id), partition_by = id)]
#[derive(Clone, Debug, PartialEq)]
pub struct ContactBefore {
    pub id: i64,
    pub name: Option<String>,
    pub emails: Option<String>,
}

/// An address of a person, on the person's partition.
#[table(name = "addresses", primary_key(contact, email), partition_by = contact)]
#[derive(Clone, Debug, PartialEq)]
pub struct Address {
    pub contact: i64,
    pub email: String,
    pub since: Timestamp,
}

/// Takes names and addresses apart, of the contacts of one partition.
#[on_deploy(name = "split-name")]
pub fn migrate(tx: &Txn, from_version: u32) -> Result<(), Abort> {
    if from_version == 0 {
        return Ok(());
    }
    for before in ContactBefore::scan_local(tx) {
        let Some(name) = &before.name else { continue };
        let Some((first, last)) = name.split_once(' ') else {
            abort!("one_name", "contact {} has one name alone: {name:?}", before.id);
        };
        Contact::update(tx, before.id, |contact| {
            (contact.first, contact.last) = (first.to_owned(), last.to_owned());
        })?;
        let emails = before.emails.iter().flat_map(|emails| emails.split(','));
        for email in emails.filter(|email| !email.is_empty()) {
            let address = Address {
                contact: before.id,
                email: email.to_owned(),
                since: tx.now(),
            };
            Address::insert(tx, &address)?;
        }
    }
    tx.info("names and addresses are taken apart");
    Ok(())
}

/// A person's last name.
#[procedure(partition_by(id), read_only)]
pub fn last(tx: &Txn, id: i64) -> Option<String> {
    Contact::get(tx, id).map(|contact| contact.last.clone())
}

/// How many addresses a person has.
#[procedure(partition_by(id), read_only)]
pub fn addresses(tx: &Txn, id: i64) -> i64 {
    Address::scan(tx).prefix((id,)).count() as i64
}

reprise_procedure::module! {
    tables: [Contact, Address],
    procedures: [last, addresses],
    on_deploy: migrate,
    retiring: [ContactBefore],
}

#[cfg(test)]
mod tests {
    use reprise_procedure::testkit::{TestDb, TestError};

    use super::*;

    /// A person as it is before the deployment, and in the shape that the deployment gives it.
    fn before(tx: &Txn, id: i64, name: &str, emails: &str) -> Result<(), Abort> {
        let before = ContactBefore {
            id,
            name: Some(name.into()),
            emails: Some(emails.into()),
        };
        ContactBefore::insert(tx, &before)?;
        let contact = Contact {
            id,
            first: String::new(),
            last: String::new(),
        };
        Contact::insert(tx, &contact)?;
        Ok(())
    }

    #[test]
    fn names_and_addresses_are_taken_apart_on_every_partition() {
        let mut db = TestDb::new(&MODULE);
        db.run(|tx| (0..20).try_for_each(|id| before(tx, id, "Ada Lovelace", "ada@a.org,ada@b.org")))
            .expect("stored");
        migrate::call(&mut db, 1).expect("migrated");
        assert_eq!(last::call(&mut db, 7), Ok(Some("Lovelace".into())));
        assert_eq!(addresses::call(&mut db, 19), Ok(2));
        assert_eq!(db.count("addresses"), 40);
        // The old column is gone: a second deployment finds nothing to do.
        migrate::call(&mut db, 2).expect("migrated");
        assert_eq!(db.count("addresses"), 40);
    }

    #[test]
    fn refused_deployment_leaves_all_partitions_unchanged() {
        let mut db = TestDb::new(&MODULE);
        db.run(|tx| {
            before(tx, 1, "Ada Lovelace", "a@a.org")?;
            before(tx, 6, "Plato", "")
        })
        .expect("stored");
        let refused = migrate::call(&mut db, 1).expect_err("Plato has one name");
        assert!(
            matches!(&refused, TestError::Aborted(abort) if abort.code == "one_name"),
            "{refused}"
        );
        assert_eq!((db.count("contacts"), db.count("addresses")), (2, 0));
        assert_eq!(last::call(&mut db, 1), Ok(Some(String::new())));
    }
}
