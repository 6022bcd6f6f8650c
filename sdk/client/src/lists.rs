//! Lists, which the server answers page by page.

use reprise_api::{ModuleList, TableList};
use serde::de::DeserializeOwned;

use crate::{client::Client, error::ClientError};

impl Client {
    /// The modules in service, of all pages.
    pub fn modules(&self) -> Result<ModuleList, ClientError> {
        let mut list: ModuleList = self.get(&["v1", "modules"])?;
        while let Some(cursor) = list.next_cursor.take() {
            let next: ModuleList = self.next_page("modules", cursor)?;
            list.modules.extend(next.modules);
            list.next_cursor = next.next_cursor;
        }
        Ok(list)
    }

    /// The tables that are stored, of all pages.
    pub fn tables(&self) -> Result<TableList, ClientError> {
        let mut list: TableList = self.get(&["v1", "tables"])?;
        while let Some(cursor) = list.next_cursor.take() {
            let next: TableList = self.next_page("tables", cursor)?;
            list.tables.extend(next.tables);
            list.next_cursor = next.next_cursor;
        }
        Ok(list)
    }

    fn next_page<T: DeserializeOwned>(&self, list: &str, cursor: String) -> Result<T, ClientError> {
        self.get_with(&["v1", list], &[("cursor", Some(cursor))])
    }
}
