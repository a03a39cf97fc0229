"""Routes besides chat and completions: how errors look there, and which model a request is for.

shapes      errors in the words of each API
stored      responses that an engine keeps, by their ids
forms       the model that a form names
passing     requests that go to an engine as they came
"""
